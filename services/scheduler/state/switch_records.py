"""Records of a stage's parallelism: what it should be, its switches, its pin. Plain values.

Stored with the ledger, so the names of fields are part of a run directory. Parallelism is stored as (dp, tp,
cp, pp), that of a replica as (tp, cp, pp): all workers of a stage have the same replicas, each as many as its
devices hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

import msgspec

from earl.parallelism import Parallelism, Replica
from earl.reparallelize import SwitchCommand
from earl.switch_figures import StageSwitch

Degrees = tuple[int, int, int, int]


class By(StrEnum):
    """The party that requested a switch. PLAN: the run file, which workers follow by themselves. REALIGN: the
    scheduler itself, for workers whose replicas are not those of their stage, because they joined so or
    because the others could not change with them."""

    SELECTOR = "selector"
    OPERATOR = "operator"
    PLAN = "plan"
    REALIGN = "mend"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRecord(StageSwitch[Degrees]):
    """One change of a stage's parallelism. before, after: of a REALIGN, of the workers that differ.

    step: that the selector decided for; 0 if it did not. commanded: incarnation by name, of workers that have
    not answered yet. resizes: the stage, of one worker, gets more or fewer devices.
    """

    by: By
    step: int = 0
    commanded: Mapping[str, int] = field(default_factory=dict)
    resizes: bool = False

    @classmethod
    def planned(cls, switch: StageSwitch[Parallelism]) -> Self:
        """The record of a switch that one worker made by itself."""
        before, after = ((layout.dp, *layout.replica) for layout in (switch.before, switch.after))
        return cls(
            epoch=switch.epoch, before=before, after=after, by=By.PLAN, reason=switch.reason,
            rolled_back=switch.rolled_back, message=switch.message, **switch.figures(),
        )  # fmt: skip

    @property
    def target(self) -> Parallelism:
        """The requested parallelism, over all workers."""
        return Parallelism(*self.after)

    @property
    def former(self) -> Parallelism:
        """The former parallelism, over all workers."""
        return Parallelism(*self.before)

    @property
    def changes_replica(self) -> bool:
        """Returns whether replicas have another parallelism afterwards: not only more or fewer of them."""
        return self.target.replica != self.former.replica

    def goal(self, present: Parallelism) -> Parallelism | None:
        """The parallelism that a worker should have; None if its devices cannot be split so."""
        return self.target if self.resizes else self.target.over(present.devices)

    @property
    def cost_s(self) -> float:
        """Seconds of work that the stage lost: the stall, and half of the rest, when it worked during the
        switch."""
        return (self.stall_s + max(self.stall_s, self.seconds)) / 2


class StageRecord(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """The stored record of a stage. Changes through LedgerTables.change_stage.

    epoch: of its newest switch, 0 before the first. replica: what its workers should have; None while nobody
    has asked for anything. bad: replicas whose log-probs did not agree, with the reason for each. switch: in
    progress. last: the one that ended last and was not a REALIGN. costs_s: of the last switches that were not
    rolled back.
    """

    epoch: int = 0
    replica: Replica | None = None
    pinned: bool = False
    bad: dict[str, str] = {}
    switch: SwitchRecord | None = None
    last: SwitchRecord | None = None
    costs_s: list[float] = []


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """The command for one worker; it may be sent again."""

    stage: str
    worker: str
    incarnation: int
    address: str
    switch: SwitchCommand


@dataclass(frozen=True, slots=True)
class SwitchEnded:
    """A switch of a stage has ended."""

    stage: str
    switch: SwitchRecord
