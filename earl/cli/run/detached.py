"""A launcher without a terminal: `python -m earl.cli.run.detached`, as `earl up` starts it.

    earl up ── what to run, a line of JSON on standard input ──► detached launcher, in a session of its own
       ▲ ◄── how far it is, lines of JSON on standard output ────┘        │
       └ returns once everything is ready                                └ runs until the run has ended

Until then the end of standard input means that `earl up` is gone, and the launch ends at once. The
launcher's output goes to standard error until it has the run's directory, and from then on to its
logs/earl.log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import IO, Any, Literal

from pydantic import BaseModel

from earl.cli.lib.exit_code import INTERRUPTED
from earl.cli.run.launch import handle_signals, last_words, write_results
from earl.cli.run.plain_view import LoggedView
from earl.config.run import RunConfig
from earl.errors import EarlError
from earl.obs import log
from earl.stack.elsewhere import Elsewhere
from earl.stack.launcher import LaunchOutcome, Signals, launch
from earl.stack.rundir import RunDirectory
from earl.stack.status import ProcessState, RunStatus

logger = logging.getLogger(__name__)
NAME = "earl"


class LaunchOrder(BaseModel):
    """The order of `earl up` to its launcher. waited_s: time that it had taken before this process began.
    notes: for the log.
    """

    config: RunConfig
    resume: bool
    waited_s: float = 0.0
    notes: list[str] = []


class LaunchNews(BaseModel):
    """One line from the launcher to `earl up`.

    "taken": the run's directory is this launch's. "processes": their states. "ready": all of them are, but
    for those that failed and that the run continues without. left_s: seconds until those that start are
    ready, by the last start with the same model; 0 if that is not known, or over.
    "failed": nothing is left running; error is the catalogue's name.
    """

    kind: Literal["taken", "processes", "ready", "failed"]
    directory: str = ""
    states: dict[str, str] = {}
    left_s: float = 0.0
    seconds: float = 0.0
    error: str = ""
    message: str = ""
    remedy: str = ""
    exit_code: int = 1
    notes: list[str] = []


class LaunchChannel:
    """Sends lines to `earl up` until everything is ready; later ones are dropped."""

    def __init__(self, file: IO[str]) -> None:
        self._file: IO[str] | None = file

    @property
    def open(self) -> bool:
        return self._file is not None

    def send(self, news: LaunchNews) -> None:
        if self._file is not None:
            try:
                self._file.write(news.model_dump_json(exclude_defaults=True) + "\n")
                self._file.flush()
            except BrokenPipeError:
                self.close()  # the end of standard input ends the launch

    def close(self) -> None:
        if self._file is not None:
            with suppress(BrokenPipeError):
                self._file.close()
            self._file = None


async def follow(
    order: LaunchOrder,
    channel: LaunchChannel,
    started_at: float,
    signals: Signals,
    elsewhere: Elsewhere | None = None,
) -> LaunchOutcome:
    """Runs a whole launch and reports it to the channel. Raises what the launch raises."""
    view = LoggedView()
    reported: dict[str, str] = {}

    def update(processes: Sequence[ProcessState], status: RunStatus) -> None:
        view.update(processes, status)
        states = {process.name: process.state for process in processes}
        if not channel.open or states == reported:
            return
        reported.update(states)
        channel.send(LaunchNews(kind="processes", states=states, left_s=left_s(processes)))
        if all(process.is_settled for process in processes) and not signals.stop.is_set():
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            channel.send(LaunchNews(kind="ready", seconds=time.monotonic() - started_at))
            channel.close()

    def taken(directory: RunDirectory) -> None:
        log_to(directory)
        for note in order.notes:
            logger.warning("%s", note)
        channel.send(LaunchNews(kind="taken", directory=str(directory.path)))

    return await launch(
        order.config,
        resume=order.resume,
        started_at=started_at,
        signals=signals,
        on_update=update,
        on_taken=taken,
        on_failed=lambda reason: logger.info("earl: %s", reason),
        elsewhere=elsewhere,
    )


async def follow_alone(order: LaunchOrder, channel: LaunchChannel, started_at: float) -> LaunchOutcome:
    """Does the same, and ends the launch if `earl up` is gone before all is ready."""
    signals = handle_signals()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop_orphaned, signals)
    return await follow(order, channel, started_at, signals)


def left_s(processes: Iterable[ProcessState]) -> float:
    """Seconds until the processes that are starting are ready, by the last start; 0 if not known, or over."""
    starting = (process for process in processes if process.state == "starting" and process.usual_s)
    return max([0.0, *(process.usual_s - process.seconds for process in starting)])


def stop_orphaned(signals: Signals) -> None:
    """Stops the launch at once: standard input has ended, so the process that waited for it is gone."""
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    signals.rush()


def log_to(directory: RunDirectory) -> None:
    """Sends standard output and error to the run's log of this process from now on."""
    with open(directory.log(NAME), "ab") as kept:
        for descriptor in (1, 2):
            os.dup2(kept.fileno(), descriptor)
    log.setup(NAME)
    # Its debug records of every call are of no use in the log.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def concluded(outcome: LaunchOutcome, config: RunConfig) -> None:
    """Writes the results of a launch that has ended, and logs how it went."""
    if outcome.begun:
        write_results(outcome, config)
    for line in last_words(outcome):
        logger.info("%s", line)


def failure_news(error: EarlError) -> LaunchNews:
    return LaunchNews(
        kind="failed",
        error=type(error).__name__,
        message=error.message,
        remedy=error.remedy,
        exit_code=error.exit_code,
        notes=list(getattr(error, "__notes__", [])),
    )


def main() -> int:
    channel = LaunchChannel(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    logging.getLogger().addHandler(logging.NullHandler())  # until there is a log
    order = LaunchOrder.model_validate_json(sys.stdin.readline())
    started_at = time.monotonic() - order.waited_s
    try:
        outcome = asyncio.run(follow_alone(order, channel, started_at))
    except EarlError as error:
        extra: dict[str, Any] = {"fields": {"error": type(error).__name__, "exit_code": error.exit_code}}
        logger.error("%s", error, extra=extra)
        channel.send(failure_news(error))
        return error.exit_code
    concluded(outcome, order.config)
    return 0 if outcome.complete else INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
