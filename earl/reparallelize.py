"""A switch of parallelism: the command to a worker, its outcome, and its costs. Pure.

    scheduler ── SwitchCommand ─► worker            rollout pool, trainer ranks, reference ranks
    scheduler ◄─ SwitchOutcome ── worker
    scheduler ◄─ StageSwitch ──── worker            of a switch that it made by itself, as the run file plans
    scheduler ── StageSwitch ───► ledger, switches.jsonl, bus, status: all workers of a stage together

What a switch costs is in earl.switch_figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from earl.config.scheduler import SwitchConfig, SwitchDeadlines
from earl.errors import ConfigError, StaleEpoch
from earl.parallelism import Parallelism
from earl.switch_figures import StageSwitch, SwitchFigures

LOGPROB_TOLERANCE: float = SwitchConfig().logprob_tolerance

# What a worker reads the outcome of a running or ended switch from: a task, or a future of another thread.
Pending = TypeVar("Pending")


@dataclass(frozen=True, slots=True)
class SwitchCommand:
    """A command to one worker to change its parallelism.

    epoch: grows with every switch of a stage; an older one is refused. parallelism: over the devices of the
    worker. logprob_tolerance: largest difference between canaries' log-probs before and after, in nats.
    requested_s: when the command came, by time.monotonic() of the process that received it. Raises
    ConfigError for a tolerance that is not a number.
    """

    epoch: int
    parallelism: Parallelism
    deadlines: SwitchDeadlines = field(default_factory=SwitchDeadlines)
    logprob_tolerance: float = LOGPROB_TOLERANCE
    reason: str = ""
    requested_s: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        if math.isnan(self.logprob_tolerance):
            raise ConfigError("logprob_tolerance is not a number", "give the largest difference allowed")


class CommandSlot(Generic[Pending]):
    """The newest command that a worker accepted, with its pending outcome. An epoch is accepted at most once.

    Epochs begin at 1. Not thread-safe.
    """

    def __init__(self) -> None:
        self._last_epoch = 0
        self._newest: SwitchCommand | None = None
        self.pending: Pending | None = None

    def accept(self, command: SwitchCommand, begin: Callable[[SwitchCommand | None], Pending]) -> Pending:
        """Returns the pending outcome of a command; one that was accepted before is not begun again.

        begin: called for a new command with the newest one before it, which may still be running. It begins
        the new one, or raises to refuse it: then its epoch may be used again. Raises StaleEpoch and what
        `begin` does.
        """
        newest = self._newest
        epoch, parallelism = command.epoch, command.parallelism
        same = newest is not None and (newest.epoch, newest.parallelism) == (epoch, parallelism)
        if same and self.pending is not None:
            return self.pending
        if epoch <= self._last_epoch:
            last = f" ({newest.parallelism})" if newest is not None else ""
            raise StaleEpoch(
                f"epoch {epoch} ({parallelism}) is not newer than epoch {self._last_epoch}{last}",
                "read the stage's parallelism, and give every switch a new epoch",
            )
        self.pending = begin(newest)
        self._newest, self._last_epoch = command, epoch
        return self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOutcome(SwitchFigures):
    """The outcome of a worker's switch. parallelism: in use now; message: the reason of a roll-back."""

    epoch: int
    parallelism: Parallelism
    rolled_back: bool = False
    message: str = ""


def ended_switch(
    before: Parallelism, command: SwitchCommand, outcome: SwitchOutcome
) -> StageSwitch[Parallelism]:
    """The report of a switch that a worker commanded itself."""
    return StageSwitch(
        epoch=command.epoch,
        before=before,
        after=command.parallelism,
        reason=command.reason,
        rolled_back=outcome.rolled_back,
        message=outcome.message,
        **outcome.figures(),
    )
