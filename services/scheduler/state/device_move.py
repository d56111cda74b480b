"""The record of a move of devices between rollout and trainer: plain values, stored with the counters."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from earl.parallelism import ROLLOUT, TRAINER
from services.scheduler.state.switch_records import By


class MovePhase(StrEnum):
    """GIVING: one stage gives devices up. GIVEN: it has. TAKING: the other takes them. RETURNING: it could
    not, and the first takes them back. ENDED: as asked, or rolled back."""

    GIVING = "giving"
    GIVEN = "given"
    TAKING = "taking"
    RETURNING = "returning"
    ENDED = "ended"


class DeviceMove(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """One move. before, after: devices of rollout and of the trainer.

    holds: what each has for sure, as it is to begin if it is started again. epoch: of the switch of a stage
    that carries the present phase out. rolled_back: it did not end as asked, and message gives the reason.
    stall_s: for which the trainer stood still. seconds: from the request to the end.
    """

    number: int
    before: tuple[int, int]
    after: tuple[int, int]
    holds: tuple[int, int]
    by: By
    reason: str
    step: int = 0
    phase: MovePhase = MovePhase.GIVING
    epoch: int = 0
    rolled_back: bool = False
    message: str = ""
    stall_s: float = 0.0
    seconds: float = 0.0

    @property
    def taker(self) -> str:
        """The stage that has more devices afterwards."""
        return TRAINER if self.after[1] > self.before[1] else ROLLOUT

    @property
    def giver(self) -> str:
        """The stage that has fewer devices afterwards, or as many if idle ones are taken."""
        return ROLLOUT if self.taker == TRAINER else TRAINER

    @property
    def cost_s(self) -> float:
        """Seconds of a step that the move cost: the trainer's stall, and of the rest the part of the devices
        that nobody used."""
        moved = abs(self.after[0] - self.before[0])
        return self.stall_s + (self.seconds - self.stall_s) * moved / sum(self.before)

    @property
    def running(self) -> bool:
        return self.phase is not MovePhase.ENDED
