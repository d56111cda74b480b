"""What is kept of a stage's parallelism: what it should be, its switches, its pin. Plain records.

A cut is (dp, tp, cp, pp), a replica (tp, cp, pp): a stage's workers all have the same replicas, and as many
of them as their devices give.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from earl.parallelism import Parallelism

Cut = tuple[int, int, int, int]
Replica = tuple[int, int, int]


class By(StrEnum):
    """Who asked for a switch. MEND: workers are cut otherwise than their stage, as they joined so, or as
    others could not go with them."""

    SELECTOR = "selector"
    OPERATOR = "operator"
    MEND = "mend"


class Switch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One change of a stage's parallelism. before, after: of all its workers together; of a MEND, of the
    workers that differ.

    step: that it was decided for; 0 if nobody decided. commanded: workers that have not answered yet, with
    their incarnations. rolled_back: it did not end as asked, and message says why. stall_s: the longest time
    in which a worker made nothing; seconds: all of it.
    """

    epoch: int
    before: Cut
    after: Cut
    by: By
    reason: str = ""
    step: int = 0
    commanded: dict[str, int] = {}
    rolled_back: bool = False
    message: str = ""
    stall_s: float = 0.0
    seconds: float = 0.0
    sequences_continued: int = 0
    moved_bytes: int = 0
    max_logprob_difference: float = 0.0

    @property
    def asked(self) -> Parallelism:
        return Parallelism(*self.after)

    @property
    def former(self) -> Parallelism:
        return Parallelism(*self.before)

    @property
    def cost_s(self) -> float:
        """What it cost the stage: the stall, and half of the rest, in which it worked beside the switch."""
        return (self.stall_s + max(self.stall_s, self.seconds)) / 2


class Course(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One stage's. epoch: handed out last. replica: what its workers should have, None while nobody asked
    for anything. bad: replicas whose log-probs did not agree, and why. last: that was not a MEND.
    costs_s: of the last switches that ended well."""

    epoch: int = 0
    replica: Replica | None = None
    pinned: bool = False
    bad: dict[str, str] = {}
    switch: Switch | None = None
    last: Switch | None = None
    costs_s: list[float] = []


@dataclass(frozen=True, slots=True)
class Command:
    """What one worker is to be told; the same command may be told again."""

    stage: str
    worker: str
    incarnation: int
    address: str
    epoch: int
    parallelism: Parallelism
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker made of a command. parallelism: how it is cut now; None if it does not say, and then it
    is as asked, or if rolled back as before."""

    parallelism: Parallelism | None = None
    rolled_back: bool = False
    message: str = ""
    stall_s: float = 0.0
    sequences_continued: int = 0
    moved_bytes: int = 0
    max_logprob_difference: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A switch of a stage is over."""

    stage: str
    switch: Switch
