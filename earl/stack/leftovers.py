"""Remains of a launch whose launcher was killed together with its warden, or ended by a reboot.

Found by the launch's record: processes by their mark, directories by their names, sockets by their kind.
A directory is only the launch's if its name is the one that this launch gave: that of its sockets has the
launch's mark in it, that of its arenas a hash of the run's directory. A record that names no arenas of the
directory in which it is was copied there, or written by somebody else: it ends and removes nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from earl.dispatch.memory.arena_file import arena_directory_name
from earl.stack import warden
from earl.stack.record import LaunchRecord

# What the supervisor makes as a mark.
MARK = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Leftovers:
    """pids: of live processes. paths: sockets, arenas, directories of sockets."""

    pids: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pids or self.paths)

    def __str__(self) -> str:
        processes = f"{len(self.pids)} process{'es' if len(self.pids) != 1 else ''}" if self.pids else ""
        return ", ".join(part for part in (processes, *self.paths) if part) or "nothing"


def find(directory: Path, record: LaunchRecord | None) -> Leftovers:
    """Finds the remains of a launch; none without a record: services that were not launched may be alive.

    None either for the record of a launch in another directory: that run may be running.
    """
    if record is None or not is_of(directory, record):
        return Leftovers()
    places = {place for place in record.leaves if Path(place).name in names_of(directory, record)}
    paths = [place for place in sorted(places) if os.path.lexists(place)]
    return Leftovers(live(record.mark), (*paths, *map(str, sockets(directory))))


def is_of(directory: Path, record: LaunchRecord) -> bool:
    """Returns whether a record is of a launch in this directory, by the arenas that every launch records."""
    return any(Path(place).name == arena_directory_name(directory) for place in record.leaves)


def names_of(directory: Path, record: LaunchRecord) -> set[str]:
    """The names of the directories that a launch makes outside of the run's."""
    sockets_name = {f"earl-{record.mark}"} if MARK.fullmatch(record.mark) else set()
    return {arena_directory_name(directory), *sockets_name}


def live(mark: str) -> tuple[int, ...]:
    """Pids of the processes of a launch."""
    processes = warden.marked_processes(mark)
    for descriptor in processes.values():
        os.close(descriptor)
    return tuple(sorted(processes))


def sockets(directory: Path) -> list[Path]:
    """Unix sockets in the run's directory and those below it."""
    return [
        path
        for pattern in ("*", "*/*")
        for path in sorted(directory.glob(pattern))
        if stat.S_ISSOCK(path.lstat().st_mode)
    ]


def clean(directory: Path, record: LaunchRecord | None) -> Leftovers:
    """Ends and removes what `find` finds; returns what it was."""
    before = find(directory, record)
    if record is not None and before.pids:
        warden.sweep(record.mark)
    for name in before.paths:
        path = Path(name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return before
