"""A run's processes and what they hold, read from /proc, not from what `earl` reports.

Every process of a run inherits its starter's environment, so a variable of the benchmark's own finds them,
however they were started. Linux.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from earl.stack import leftovers, warden
from earl.stack.record import read_record

MARK = "EARL_BENCH_MARK"
SHARED_MEMORY = Path("/dev/shm")

# Permissions, offset, device, inode and path of a line of /proc/PID/maps that other processes see writes of.
_SHARED = re.compile(r"^\S+ ...s \S+ \S+ \d+ +(/.*?)(?: \(deleted\))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Footprint:
    """processes: when each began, in clock ticks, by pid: which one of a pid it is. held: files of shared
    memory that they map, and Unix sockets that they are bound to."""

    processes: dict[int, int] = field(default_factory=dict)
    held: set[Path] = field(default_factory=set)

    def __or__(self, other: Footprint) -> Footprint:
        return Footprint(self.processes | other.processes, self.held | other.held)


@dataclass(slots=True)
class Place:
    """A directory for processes that are started with a mark. observed: all that `look` has found so far."""

    directory: Path
    mark: str
    observed: Footprint = field(default_factory=Footprint)

    def measured(self) -> Footprint:
        """The processes and files that exist now; they are added to `observed`."""
        now = measured(self.mark)
        self.observed |= now
        return now

    def left(self) -> list[str]:
        return left_behind(self.mark, self.mark, self.observed)


@contextmanager
def fresh(benchmark: str, mark: str, runs: str) -> Iterator[Place]:
    """A directory that is removed after every process of the mark has ended, with what runs made elsewhere.

    runs: a glob of their directories in it.
    """
    with tempfile.TemporaryDirectory(prefix=f"earl-bench-{benchmark}-") as directory:
        place = Place(Path(directory), mark)
        try:
            yield place
        finally:
            end(place)
            for run in sorted(place.directory.glob(runs)):
                leftovers.clean(run, read_record(run))


def end(place: Place) -> None:
    """Ends all processes of a place: SIGTERM, a bounded wait, SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        place.measured()
        descriptors: dict[int, int] = {}
        for pid, began in living(place.observed).items():
            with suppress(OSError):  # it has ended since
                descriptors[pid] = os.pidfd_open(pid)
                if (now := _stat(pid)) is None or now[1] != began:
                    os.close(descriptors.pop(pid))
        warden.send(descriptors.values(), number)
        warden.wait_all(descriptors.values(), warden.GRACE_S)
        for descriptor in descriptors.values():
            os.close(descriptor)


def living(before: Footprint) -> dict[int, int]:
    """The processes of `before` that still run, with their start times."""
    return {
        pid: began
        for pid, began in before.processes.items()
        if (status := _stat(pid)) is not None and status[1] == began
    }


def measured(mark: str) -> Footprint:
    """All processes with this mark and their children: a process that rewrites its title, as Valkey does,
    may show no environment."""
    living = {pid: status for pid in _pids() if (status := _stat(pid)) is not None}
    ours = {pid for pid in living if _marked(pid, mark)}
    while more := {pid for pid, (parent, _) in living.items() if parent in ours} - ours:
        ours |= more
    return Footprint({pid: living[pid][1] for pid in ours}, _bound_sockets(ours))


def left_behind(mark: str, name: str, before: Footprint) -> list[str]:
    """Returns what of a run is still there: processes, what they held, shared memory with its name."""
    named = {path for path in SHARED_MEMORY.iterdir() if name in path.name}
    there = sorted(path for path in before.held | named if os.path.lexists(path))
    now = measured(mark).processes | living(before)
    return [*(f"process {pid}" for pid in sorted(now)), *map(str, there)]


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _stat(pid: int) -> tuple[int, int] | None:
    """(pid of its parent, when it began) of a process that lives."""
    with suppress(OSError):
        state, parent, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parent), int(rest[17])) if state != "Z" else None
    return None


def _marked(pid: int, mark: str) -> bool:
    with suppress(OSError):
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _bound_sockets(pids: Iterable[int]) -> set[Path]:
    bound = {
        fields[6]: Path(fields[7])
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]
        if len(fields := line.split(maxsplit=7)) == 8 and fields[7].startswith("/")
    }
    held: set[Path] = set()
    for pid in pids:
        with suppress(OSError):
            mapped = map(Path, _SHARED.findall(Path(f"/proc/{pid}/maps").read_text()))
            held |= {path for path in mapped if path.is_relative_to(SHARED_MEMORY)}
        held |= {bound[inode] for inode in _sockets(pid) if inode in bound}
    return held


def _sockets(pid: int) -> Iterator[str]:
    """Inodes."""
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = os.readlink(descriptor)
                if target.startswith("socket:["):
                    yield target[8:-1]
