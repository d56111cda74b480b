"""Measures what a process tree holds (memory, files, threads, processes), and whether a series of it grows.

Read from /proc where there is one, else through psutil if it is installed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

# Share of a series that counts as warm-up and is left out.
WARM_UP = 0.3
# Growth is a trend if, among all pairs of samples, rises exceed falls by this share.
STEADY = 0.6


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Resources of a process and all that it started. memory_bytes: resident."""

    memory_bytes: int
    files: int
    threads: int
    processes: int


def usage_of(pid: int) -> ProcessUsage | None:
    """Measures a process; None if it has ended, or there is neither /proc nor psutil."""
    if Path("/proc/self/statm").exists():
        return _from_proc(pid)
    return _from_psutil(pid)


def _from_proc(pid: int) -> ProcessUsage | None:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    total: list[tuple[int, int, int]] = []
    waiting = [pid]
    while waiting:
        process = Path("/proc") / str(waiting.pop())
        try:
            pages = int((process / "statm").read_text().split()[1])
            tasks = list((process / "task").iterdir())
            total.append((pages * page_bytes, len(list((process / "fd").iterdir())), len(tasks)))
            for task in tasks:
                waiting += map(int, (task / "children").read_text().split())
        except OSError:  # it has ended since
            if not total:
                return None
    memory, files, threads = (sum(column) for column in zip(*total, strict=True))
    return ProcessUsage(memory, files, threads, len(total))


def _from_psutil(pid: int) -> ProcessUsage | None:
    try:
        import psutil
    except ImportError:
        return None
    try:
        process = psutil.Process(pid)
        tree = [process, *process.children(recursive=True)]
        memory = sum(part.memory_info().rss for part in tree)
        return ProcessUsage(
            memory, sum(part.num_fds() for part in tree), sum(part.num_threads() for part in tree), len(tree)
        )
    except psutil.Error:
        return None


@dataclass(frozen=True, slots=True)
class Trend:
    """slope: growth per episode (the median of all pairs' slopes, after Theil and Sen). steady: the share of
    pairs that rise less the share that falls (Kendall), 1.0 for what only grows."""

    slope: float
    steady: float

    def grows(self, per_episode: float) -> bool:
        """Returns whether it grows steadily, by more than this each episode."""
        return self.steady >= STEADY and self.slope > per_episode


def trend(samples: Sequence[tuple[int, float]]) -> Trend:
    """Measures the growth of samples (episodes played, value) without the first WARM_UP of the episodes."""
    if not samples:
        return Trend(0.0, 0.0)
    begin = samples[0][0] + (samples[-1][0] - samples[0][0]) * WARM_UP
    kept = [sample for sample in samples if sample[0] >= begin]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for index, earlier in enumerate(kept)
        for later in kept[index + 1 :]
        if later[0] > earlier[0]
    ]
    if not slopes:
        return Trend(0.0, 0.0)
    steady = sum((slope > 0) - (slope < 0) for slope in slopes) / len(slopes)
    return Trend(median(slopes), steady)
