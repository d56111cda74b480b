"""The image under test, built once from this tree; and what these tests need of the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import containers, needs

TOOL = Path(__file__).resolve().parents[2] / "tools" / "containers.py"


@pytest.fixture(scope="session")
def image() -> str:
    """The CPU image. Its layers are kept, so that only what changed is built again."""
    if missing := containers.tool.missing_programs():
        needs.lacking("; ".join(missing))
    done = subprocess.run(
        [sys.executable, str(TOOL), "build"], capture_output=True, text=True, timeout=1800, check=False
    )
    if done.returncode != 0:
        pytest.fail(f"python tools/containers.py build:\n{(done.stdout + done.stderr)[-4000:]}")
    return containers.IMAGE


@pytest.fixture
def secrets(image: str, tmp_path: Path) -> Path:
    """Made as docs/deploy.md says, by the image itself."""
    return containers.make_secrets(tmp_path / "secrets")
