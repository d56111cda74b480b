"""Ranks as processes in torch's environment, each running a module of tests.support."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_ranks(module: str, count: int, *arguments: str, timeout_s: float = 100.0) -> Sequence[str]:
    """What each of `count` ranks of `python -m module arguments` printed, in order."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=os.environ | where | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        return [rank.communicate(timeout=timeout_s)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
