"""End a run as Ctrl-C would, and wait until nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from earl.cli.lib.find_run import AsJson, RunningRun, newest, pick_run
from earl.cli.lib.notices import waiting
from earl.cli.lib.run_directory import config_of
from earl.config.run import RunConfig
from earl.errors import ConfigError, ProcessFailed
from earl.stack import leftovers, warden
from earl.stack.cluster.folder import NOW, STOP, ClusterFolder, HeadJob
from earl.stack.cluster.heads import end_jobs, head_of, request_stop, until_inactive
from earl.stack.ending import recorded_reason
from earl.stack.leftovers import Leftovers
from earl.stack.record import is_held, read_record

app = typer.Typer(add_completion=False)

# Longest wait for the record of a launcher that has just taken the directory.
RECORD_S = 5.0
# Beyond stack.stop_s, which bounds the workers' end and that of all others: the last status, the report.
SLACK_S = 60.0
HURRIED_S = 20.0
# A launcher that was killed leaves its warden to end the rest.
WARDEN_S = 15.0
POLL_S = 0.05


@app.command(epilog="Example: earl stop tictactoe")
def stop(
    run: RunningRun = None,
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait for a checkpoint: end everything at once.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """End a run as Ctrl-C would, and wait until nothing of it is left.

    The trainer saves a checkpoint, the report is written, every process is stopped. What is left of a run
    whose launcher was killed is ended and removed. Ends with code 13 if something could not be, and with
    2 for services that no launcher started, which it does not touch.
    """
    ended = end(to_end(run), now=now)
    if as_json:
        print(json.dumps(ended.as_object()))
    else:
        for line in ended.lines():
            sys.stderr.write(f"{line}\n")
    if ended.remains:
        raise ProcessFailed(
            f"{ended.remains} of {ended.directory} could not be cleaned up", "end it yourself"
        )


def to_end(run: Path | None) -> Path:
    """The running run, or else the newest one of which something is left. Raises ConfigError."""
    try:
        return pick_run(run)
    except ConfigError:
        if run is None and not any(is_held(directory) for directory in newest()):
            for directory in newest():
                record = read_record(directory)
                if record is not None and leftovers.find(directory, record):
                    return directory
        raise


@dataclass(slots=True)
class EndedRun:
    """The outcome of `earl stop`.

    was_running: False for a run that had no launcher. reason: the sentence of ending_reason. left: what had
    to be cleaned up.
    """

    directory: Path
    was_running: bool
    outcome: str = ""
    reason: str = ""
    seconds: float = 0.0
    left: Leftovers = field(default_factory=Leftovers)
    remains: Leftovers = field(default_factory=Leftovers)

    def as_object(self) -> dict[str, Any]:
        return {
            "run": self.directory.name,
            "directory": str(self.directory),
            "was_running": self.was_running,
            "outcome": self.outcome or None,
            "why_ended": self.reason,
            "down_s": round(self.seconds, 3),
            "left": asdict(self.left),
            "remains": asdict(self.remains),
            "resume": self.resume or None,
        }

    @property
    def resume(self) -> str:
        """The command that resumes the run, "" if there is nothing to resume."""
        there = (self.directory / "run.toml").is_file()
        return f"earl resume {self.directory}" if self.outcome != "complete" and there else ""

    def lines(self) -> list[str]:
        name = str(self.directory)
        if self.was_running:
            words = [f"{name} has ended, after {self.seconds:.1f} s: {self.reason}"]
        else:
            words = [f"{name} was not running{'' if self.left else ', and nothing of it was left'}"]
        if self.left:
            words.append(f"cleaned up: {self.left}")
        if (report := self.directory / "report.html").is_file():
            words.append(f"report: {report}")
        return [*words, *([f"resume with: {self.resume}"] if self.resume else [])]


def end(directory: Path, *, now: bool) -> EndedRun:
    """Ends a run and cleans up after it; raises ConfigError for what is none, or was not launched here."""
    config = config_of(directory)
    began = time.monotonic()
    was_running = is_held(directory)
    head = head_of(directory)
    if head is not None:
        stop_head(directory, head, config, now=now)
    elif was_running:
        stop_launcher(directory, config, now=now)
        until_ended(directory)
    record = read_record(directory)
    if record is None and not was_running and head is None:
        raise ConfigError(
            f"{directory} was not launched by `earl` on this machine: nothing was touched",
            "if it belongs to a fleet, end its services where they were started",
        )
    left = leftovers.clean(directory, record)
    remains = leftovers.find(directory, record)
    outcome, seconds = record.outcome if record is not None else "", time.monotonic() - began
    return EndedRun(directory, was_running, outcome, recorded_reason(directory), seconds, left, remains)


def stop_head(directory: Path, head: HeadJob, config: RunConfig, *, now: bool) -> None:
    """Tells the head of a run on a cluster to end, more and more firmly; then nothing of its jobs is left.

    Raises ProcessFailed for jobs that do not end.
    """
    from earl.stack.cluster.managers import manager_of  # only here: it needs what asks a cluster's manager

    manager = manager_of(head.manager, config.cluster)
    queued = manager.statuses([head.job])[head.job].phase == "queued"
    bounds = [(NOW, HURRIED_S)] if now else [(STOP, 2 * config.stack.stop_s + SLACK_S), (NOW, HURRIED_S)]
    for word, bound_s in [] if queued else bounds:
        request_stop(directory, word)
        doing = "ends" if word == NOW else "ends its step and saves a checkpoint"
        with waiting(f"{directory} {doing}", bound_s):
            if until_inactive(head, bound_s):
                break
    folder = ClusterFolder(directory)
    if remaining := end_jobs(manager, [head.job, *folder.names()]):
        raise ProcessFailed(
            f"jobs {' '.join(remaining)} of {directory} have not ended", f"see {head.manager}'s own commands"
        )
    folder.keep_job(replace(head, ended=True))
    folder.clear()


def stop_launcher(directory: Path, config: RunConfig, *, now: bool) -> None:
    """Tells the launcher to end, more and more firmly; returns when it has ended."""
    launcher = launcher_pidfd(directory)
    if launcher is None:
        return
    bounds = [(signal.SIGTERM, 2 * config.stack.stop_s + SLACK_S), (signal.SIGUSR1, HURRIED_S)]
    if now:
        bounds = bounds[1:]
    try:
        for number, bound_s in bounds:
            warden.send([launcher], number)
            doing = "ends" if number is signal.SIGUSR1 else "ends its step and saves a checkpoint"
            with waiting(f"{directory} {doing}", bound_s):
                if warden.wait_all([launcher], bound_s):
                    return
            sys.stderr.write(f"{directory} has not ended within {bound_s:g} s: signalled again\n")
        warden.send([launcher], signal.SIGKILL)
        warden.wait_all([launcher], WARDEN_S)
    finally:
        os.close(launcher)


def launcher_pidfd(directory: Path) -> int | None:
    """A pidfd of the launcher that holds the directory; None if it has ended meanwhile."""
    until = time.monotonic() + RECORD_S
    while is_held(directory):
        record = read_record(directory)
        if record is not None:
            try:
                descriptor = os.pidfd_open(record.pid)
            except OSError:
                descriptor = -1
            # Held still: the record's pid is of who holds it.
            if descriptor >= 0 and is_held(directory):
                return descriptor
            if descriptor >= 0:
                os.close(descriptor)
        if time.monotonic() > until:
            raise ProcessFailed(
                f"{directory} is held by a process without a launch record", "end that `earl` yourself"
            )
        time.sleep(POLL_S)
    return None


def until_ended(directory: Path) -> None:
    """Waits at most WARDEN_S for the warden of a launcher that was killed, which ends what that left."""
    record = read_record(directory)
    until = time.monotonic() + WARDEN_S
    while record is not None and not record.outcome and time.monotonic() < until:
        if not leftovers.live(record.mark):
            return
        time.sleep(POLL_S)
