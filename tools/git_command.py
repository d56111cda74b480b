"""Output of git commands, for the tools."""

from __future__ import annotations

import subprocess
from pathlib import Path

GIT_S = 120.0


def git(root: Path, *arguments: str) -> str:
    """Output of a git command in `root`, without the last newline. Raises CalledProcessError, OSError,
    TimeoutExpired."""
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIT_S)
    return done.stdout.rstrip("\n")


def git_if_any(root: Path, *arguments: str) -> str:
    """Output as of `git`; "" where the command fails, as it does outside of a checkout."""
    try:
        return git(root, *arguments)
    except subprocess.CalledProcessError:
        return ""
