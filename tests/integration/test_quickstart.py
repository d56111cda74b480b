"""The commands of docs/quickstart.md, as they stand there, one after the other."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
COMMAND_S = 180.0
# A screen for a person, which test_stack_background.py plays, and what makes the virtual environment.
LEFT_OUT = ("earl top", "make demo", ". .venv/bin/activate")


def commands() -> list[str]:
    """Those of all blocks, in their order."""
    blocks = PAGE.read_text().split("```")[1::2]
    return [line for block in blocks for line in block.strip().splitlines() if line not in LEFT_OUT]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_does_what_the_page_says(tmp_path: Path) -> None:
    here = tmp_path
    said: dict[str, str] = {}

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "earl.cli.main", *words],
            cwd=here,
            env=os.environ | {"PYTHONPATH": str(ROOT), "EARL_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )

    try:
        for line in commands():
            words = shlex.split(line)
            if words[0] == "cd":
                here = here / words[1]
                continue
            assert words[0] == "earl"
            done = run(words[1:])
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
            said[line] = done.stdout + done.stderr
    finally:
        run(["down", "--now"])
    assert {"earl up", "earl status", "earl logs", "earl dashboard", "earl down"} <= {
        " ".join(line.split()[:2]) for line in said
    }
    assert "running" in said["earl status"] and "http://127.0.0.1:" in said["earl dashboard"]
    assert list((here / "runs" / "first" / "logs").iterdir())
