"""The reason why a run ended, in the words that every command, the report and the page use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from earl.errors import ConfigError
from earl.stack.record import LaunchRecord, read_record
from earl.stack.run_files import FAILURE, read_object
from earl.stack.status import RunStatus

# Proposed for a run that was only to imitate.
FIRST_STEPS = 100

if TYPE_CHECKING:
    from earl.config.run import RunConfig


def ending_reason(outcome: str, status: RunStatus, failure: Mapping[str, Any]) -> str:
    """One sentence without a full stop.

    outcome: complete, stopped or failed; anything else for a launcher that recorded none. status: the last
    that was recorded. failure: error and message of the launch, empty if it did not fail.

    >>> ending_reason("complete", RunStatus(message="all 40 steps are trained"), {})
    'complete: all 40 steps are trained'
    >>> ending_reason("stopped", RunStatus(message="stopped by Ctrl-C", phase="train", step=3, steps=40), {})
    'stopped by Ctrl-C after 3 of 40 steps'
    """
    if outcome == "complete":
        return f"complete: {status.message}" if status.message else "complete"
    if outcome == "stopped":
        return f"{status.message or 'stopped'}{progress(status)}"
    if outcome == "failed":
        reason = [str(failure[key]) for key in ("error", "message") if failure.get(key)]
        return ": ".join([f"failed{progress(status)}", *reason])
    return "lost: its launcher was killed or the machine was restarted, and nothing was recorded"


def recorded_reason(directory: Path) -> str:
    """The sentence of `ending_reason` for the last launch of a run, from what its directory holds."""
    record = read_record(directory)
    outcome, status = (record.outcome, record.status) if record is not None else ("", RunStatus())
    return ending_reason(outcome, status, read_object(directory / FAILURE))


def refuse_complete(config: RunConfig, record: LaunchRecord | None, shown: str) -> None:
    """Raises ConfigError for a run that is complete and has nothing left to do under this configuration.

    record: of the run's last launch. shown: the run as commands name it.
    """
    if record is None or record.outcome != "complete":
        return
    status, scheduler = record.status, config.scheduler
    if not scheduler.steps and not config.warmup.batches:
        raise ConfigError(
            f"{config.name} is an evaluation, with nothing to continue",
            "evaluate again with: earl eval RUN, or name a run that trains: earl ls lists them",
        )
    limited = status.step < status.steps
    if limited and scheduler.train_limit_s > 0 and f"{scheduler.train_limit_s:g} s" in status.message:
        key, value = "scheduler.train_limit_s", f"{2 * scheduler.train_limit_s:g}"
    elif scheduler.steps <= status.step:
        key, value = "scheduler.steps", str(2 * status.step or FIRST_STEPS)
    else:
        return
    raise ConfigError(
        f"{config.name} is {ending_reason('complete', status, {})}",
        f"to continue it raise {key}: earl resume {shown} --{key} {value}",
    )


def progress(status: RunStatus) -> str:
    """Returns how far the run was, " after 3 of 40 steps"; "" if that is not known."""
    if status.phase == "train" and status.steps:
        return f" after {status.step} of {status.steps} steps"
    return f" in phase {status.phase}" if status.phase and status.phase != "done" else ""
