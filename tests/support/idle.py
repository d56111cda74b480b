"""Measures whether processes sleep while nothing is to be done.

What polls wakes up, again and again, however fast the machine; what spins uses a whole core. Both are counted
by the kernel and divided by however long the stretch took: a machine that is busy with other things makes
them fewer. The CPU seconds of a process that sleeps depend on the machine: the slow tests bound them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

STRETCH_S = 1.0
STRETCHES = 3
# Gloo's event loops look around every 10 ms, in every process group: PyTorch's doing, not an engine's.
FOREIGN = frozenset({"gloo_tcp_loop"})


@dataclass(frozen=True, slots=True)
class Activity:
    """One process over one stretch of time."""

    pid: int
    wakeups_per_s: float
    cores: float


async def assert_sleeps(pids: Sequence[int], wakeups_per_s: float, cores: float = 0.1) -> None:
    """Raises AssertionError unless all processes stay below both through one of STRETCHES stretches."""
    seen: list[list[Activity]] = []
    for _ in range(STRETCHES):
        seen.append(await activities(pids))
        if all(one.wakeups_per_s <= wakeups_per_s and one.cores <= cores for one in seen[-1]):
            return
    raise AssertionError(f"awake with nothing to do: {seen}")


async def activities(pids: Sequence[int]) -> list[Activity]:
    """Returns what each process does during one stretch."""
    began_s = time.monotonic()
    before = [(_wakeups(pid), _cpu_s(pid)) for pid in pids]
    await asyncio.sleep(STRETCH_S)
    took_s = time.monotonic() - began_s
    return [
        Activity(pid, (_wakeups(pid) - wakeups) / took_s, (_cpu_s(pid) - cpu_s) / took_s)
        for pid, (wakeups, cpu_s) in zip(pids, before, strict=True)
    ]


def _cpu_s(pid: int) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])


def _wakeups(pid: int) -> int:
    """Returns how often the threads of a process gave up the processor of their own accord."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            if (thread / "comm").read_text().strip() in FOREIGN:
                continue
            lines = (thread / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            # It ended meanwhile.
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return total
