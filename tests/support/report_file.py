"""Reads what a report, or the page of `earl compare`, holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def report_data(path: Path) -> dict[str, Any]:
    """The data inside the file."""
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL
    )
    assert found is not None
    return json.loads(found.group(1))
