"""Memory that processes hold of versions of the weights, as the kernel counts it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path


def private_bytes(pids: Iterable[int]) -> int:
    """Resident memory that belongs to each of these processes alone."""
    return sum(_status_bytes(pid, "RssAnon") for pid in pids)


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def file_bytes(directory: Path, but: Iterable[Path] = ()) -> int:
    """Memory that the files of a directory in memory take, all but these."""
    others = {path.name for path in but}
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir() if path.name not in others)


def median_interval(values: list[float]) -> tuple[float, float]:
    """An interval that holds the median of what was measured with at least 95 %, by order statistics; with
    fewer than six values their least and greatest."""
    ordered, count, outside = sorted(values), len(values), 0
    while 2 * sum(math.comb(count, i) for i in range(outside + 2)) <= 0.05 * 2**count:
        outside += 1
    return ordered[outside], ordered[count - 1 - outside]
