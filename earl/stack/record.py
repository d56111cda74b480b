"""A launcher's record of its launch in the run's directory, `launch.json`, for other processes to read.

It is there before the first process is started, so that a run whose launcher was killed can be cleaned
up; it is written again, whole, when a process changes its state, and with the last status at the end.
The record does not show whether the launcher is alive: it holds `launcher.lock` for as long as it does.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from earl.expendable import ExpendableFile
from earl.json_fields import from_json
from earl.stack import run_files
from earl.stack.cluster.heads import head_of, is_active
from earl.stack.run_files import LAUNCH, LOCK
from earl.stack.status import ProcessState, RunStatus

Outcome = Literal["", "complete", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch. Times are Unix nanoseconds, 0 for what has not happened.

    pid: the launcher's. mark: in the environment of every process of the launch. leaves: directories outside
    of the run's that go when it ends. ready_s: from the launcher's start until all processes were settled.
    outcome: "" while it runs. processes: as they were at written_ns. status: the last, once it has ended;
    until then empty but for elapsed_s, that of the run when this launch began.
    """

    pid: int
    mark: str
    leaves: tuple[str, ...] = ()
    started_ns: int = 0
    written_ns: int = 0
    ready_s: float = 0.0
    outcome: Outcome = ""
    processes: tuple[ProcessState, ...] = ()
    status: RunStatus = field(default_factory=RunStatus)
    ended_ns: int = 0


def write_record(directory: Path, record: LaunchRecord) -> None:
    """Whole or not at all, readable by this user alone."""
    run_files.replace(directory / LAUNCH, json.dumps(asdict(record), indent=1) + "\n")


def read_record(directory: Path) -> LaunchRecord | None:
    """The record of a run's last launch; None if it wrote none, or one that this version cannot read."""
    try:
        return from_json(LaunchRecord, json.loads((directory / LAUNCH).read_bytes()))
    except (OSError, ValueError):
        return None


def is_held(directory: Path) -> bool:
    """Returns whether a launcher has the directory now, on this machine or in a job of a cluster."""
    if is_locked(directory):
        return True
    # A file system need not show locks of other machines.
    head = head_of(directory)
    return head is not None and is_active(head)


def is_locked(directory: Path) -> bool:
    """Returns whether a launcher of this machine has the directory now."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class LaunchRecorder:
    """Writes the record of one launch as it goes.

    started_at: time.monotonic() at its start. earlier_s: seconds that earlier launches of the run took.
    """

    def __init__(
        self, directory: Path, mark: str, leaves: Iterable[Path], started_at: float, earlier_s: float = 0.0
    ) -> None:
        self._directory = directory
        self._expendable = ExpendableFile(directory / LAUNCH)
        self._started_at = started_at
        now = time.time_ns()
        began_ns = now - int((time.monotonic() - started_at) * 1e9)
        self._earlier = RunStatus(elapsed_s=earlier_s)
        self._record = LaunchRecord(
            os.getpid(), mark, tuple(map(str, leaves)), started_ns=began_ns, written_ns=now,
            status=self._earlier,
        )  # fmt: skip
        write_record(directory, self._record)

    def update(self, processes: Sequence[ProcessState], status: RunStatus) -> None:
        """Writes if a process has changed its state."""
        record = replace(self._record, processes=tuple(processes), status=status)
        if not record.ready_s and processes and all(process.is_settled for process in processes):
            record = replace(record, ready_s=time.monotonic() - self._started_at)
        changed = [process.identity for process in processes] != [
            process.identity for process in self._record.processes
        ]
        self._record = replace(record, written_ns=time.time_ns())
        if changed:
            # While the run runs, its status comes from the scheduler.
            self._write(replace(self._record, status=self._earlier))

    def end(self, outcome: Outcome) -> None:
        """Writes the end of the launch."""
        now = time.time_ns()
        self._record = replace(self._record, outcome=outcome, written_ns=now, ended_ns=now)
        self._write(self._record)

    def _write(self, record: LaunchRecord) -> None:
        """Writes the record; where the disk is full, readers keep seeing the last one."""
        with self._expendable.written():
            write_record(self._directory, record)
