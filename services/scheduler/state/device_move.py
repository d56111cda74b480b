"""The record of a move of devices between two stages of a pool: plain values, stored with the counters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from earl.parallelism import POOLED, Division, Parallelism, Replica
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
    """One move. before, after: devices of the pool's stages, two or three of them, as a Division.

    holds: what each has for sure, as it is to begin if it is started again. epoch: of the switch of a stage
    that carries the present phase out. rolled_back: it did not end as asked, and message gives the reason.
    stall_s: for which the ranks of giver and taker stood still. seconds: from the request to the end.
    replicas_before, replicas_after: (tp, cp, pp) of each stage's replicas; without any in records of runs
    whose moves kept them.
    """

    number: int
    before: Division
    after: Division
    holds: Division
    by: By
    reason: str
    step: int = 0
    phase: MovePhase = MovePhase.GIVING
    epoch: int = 0
    rolled_back: bool = False
    message: str = ""
    stall_s: float = 0.0
    seconds: float = 0.0
    replicas_before: dict[str, Replica] = {}
    replicas_after: dict[str, Replica] = {}

    def replica(self, stage: str, devices: int) -> Replica | None:
        """Returns the replica of a stage that has so many devices, before or after the move; None if the
        record does not tell."""
        moved = stage in self.changes and devices == by_stage(self.after)[stage]
        return (self.replicas_after if moved else self.replicas_before).get(stage)

    @property
    def held_replicas(self) -> dict[str, Replica]:
        """The replicas of the stages with what they have for sure, as far as the record tells."""
        known = {stage: self.replica(stage, devices) for stage, devices in by_stage(self.holds).items()}
        return {stage: replica for stage, replica in known.items() if replica is not None}

    @property
    def held_layouts(self) -> dict[str, Parallelism]:
        """The parallelism of the stages with what they have for sure, as far as the record tells."""
        devices = by_stage(self.holds)
        layouts = {
            stage: Parallelism(1, *replica).over(devices[stage])
            for stage, replica in self.held_replicas.items()
        }
        return {stage: layout for stage, layout in layouts.items() if layout is not None}

    @property
    def changes(self) -> dict[str, int]:
        """The devices that each stage has more afterwards, below 0 for fewer; stages that change alone."""
        changes = {
            stage: after - before
            for stage, before, after in zip(POOLED, self.before, self.after, strict=False)
        }
        return {stage: change for stage, change in changes.items() if change}

    @property
    def taker(self) -> str:
        """The stage that has more devices afterwards."""
        return next(stage for stage, change in self.changes.items() if change > 0)

    @property
    def giver(self) -> str:
        """The stage that has fewer devices afterwards; "" where idle ones are taken."""
        return next((stage for stage, change in self.changes.items() if change < 0), "")

    @property
    def cost_s(self) -> float:
        """Seconds of a step that the move cost: the stall, and of the rest the part of the devices that
        nobody used."""
        moved = max(abs(change) for change in self.changes.values())
        return self.stall_s + (self.seconds - self.stall_s) * moved / sum(self.before)

    @property
    def running(self) -> bool:
        return self.phase is not MovePhase.ENDED


def by_stage(division: Division) -> dict[str, int]:
    """The devices of each stage by its name."""
    return dict(zip(POOLED, division, strict=False))


def division_text(division: Division, replicas: Mapping[str, Replica] | None = None) -> str:
    """A division in words: "rollout 6, trainer 2", with layouts "rollout 6 as dp3·tp2, trainer 2"."""
    known = replicas or {}
    return ", ".join(
        f"{stage} {stage_text(devices, known.get(stage))}" for stage, devices in by_stage(division).items()
    )


def stage_text(devices: int, replica: Replica | None) -> str:
    """A stage's part of a division in words: "6"; if a replica has several devices, "6 as dp3·tp2"."""
    if replica is None or math.prod(replica) == 1:
        return str(devices)
    return f"{devices} as {Parallelism(1, *replica).over(devices) or Parallelism(1, *replica)}"
