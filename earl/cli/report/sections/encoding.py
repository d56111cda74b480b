"""Sections and answers as JSON."""

from __future__ import annotations

import json
from typing import Any

from earl.obs.metrics import plain

DIGITS = 6


def encoded(value: Any, digits: int = DIGITS) -> bytes:
    """Strict JSON on one line, numbers as exact as a page can show them; NaN and infinity become null."""
    return json.dumps(
        plain(value, digits), allow_nan=False, separators=(",", ":"), ensure_ascii=True
    ).encode()
