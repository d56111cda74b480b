"""From which checkout a benchmark ran."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commit() -> str:
    """The checkout's commit, with "+changes" if it has any; "" outside a checkout."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False, timeout=10
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "--short=12", "HEAD")
    return f"{head}+changes" if head and git("status", "--porcelain", "--untracked-files=no") else head
