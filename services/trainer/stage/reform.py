"""Ranks join or leave a stage at a boundary of its work: a new group of ranks takes over.

    boundary: what lasts is saved · canaries' log-probs ─► the group ends ─► the next formation's ranks
        ─► load what was saved ─► canaries again ─► within tolerance: they work
                                                 └► beyond it: the former ranks again, from the same

The trainer saves a checkpoint; the reference stage has its frozen weights on disk. Promise: the new ranks
compute with what the former ones had, so nothing is trained twice and nothing is lost. A rank that dies
between the two groups ends all processes: the stage starts again from what was saved, with the ranks that it
had last.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from earl.errors import CheckpointError
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchCommand, SwitchOutcome
from services.trainer.ranks.codec import command_from_rank0
from services.trainer.ranks.phase_clock import PhaseClock, SwitchPhase
from services.trainer.ranks.process_group import Group
from services.trainer.stage.stage_rank0 import StageRank0

# Log-probs of the canaries as the present ranks compute them, float32[tokens]. A collective.
Canaries = Callable[[], np.ndarray]


@dataclass(frozen=True, slots=True)
class Reform:
    """A change of a stage's ranks that has begun. former: the parallelism before it.

    canaries: their log-probs before it, float32[tokens]. began_s: of the boundary, by time.monotonic().
    clock: of this process's phases. reason: why the former ranks take over again; "" on the way to the new
    ones. difference: of the log-probs.
    """

    command: SwitchCommand
    former: Parallelism
    canaries: np.ndarray
    began_s: float
    clock: PhaseClock
    reason: str = ""
    difference: float = 0.0

    @property
    def target(self) -> Parallelism:
        """The parallelism of the ranks that take over."""
        return self.former if self.reason else self.command.parallelism

    def checked(self, difference: float) -> Reform:
        """The same change once the new ranks have computed the canaries: with a reason if their log-probs
        differ too much. difference: the largest, of any rank; inf where one is no number."""
        tolerance = self.command.logprob_tolerance
        agrees = difference <= tolerance
        reason = (
            "" if agrees else f"log-probs of canaries differ by {difference:.3g}, more than {tolerance:g}"
        )
        return replace(self, reason=reason, difference=difference)

    def outcome(self) -> SwitchOutcome:
        """The outcome, now that the ranks that took over work."""
        now_s = time.monotonic()
        return SwitchOutcome(
            epoch=self.command.epoch,
            parallelism=self.target,
            rolled_back=bool(self.reason),
            message=self.reason,
            stall_s=now_s - self.began_s,
            seconds=now_s - self.command.requested_s,
            max_logprob_difference=self.difference,
            logprobs_compared=int(np.count_nonzero(self.canaries)),
            phases_s=dict(self.clock.seconds),
        )


def stands(
    group: Group, present: Parallelism, canaries: Canaries, reform: Reform | None
) -> tuple[Reform | None, bool]:
    """(the change as far as this rank knows it, whether the ranks that took over stay). A collective.

    present: their parallelism. reform: what led to them, on rank 0, whose word counts.
    """
    after = canaries()
    sent = group.broadcast(reform.canaries.tobytes() if reform is not None else b"")
    before = np.frombuffer(sent, after.dtype)
    # Each rank compares its own: replicas of the reference stage compute apart from each other.
    apart = float(np.abs(after - before).max()) if before.size else 0.0
    largest = group.max(torch.tensor([math.inf if math.isnan(apart) else apart], dtype=torch.float64))
    if reform is not None and not reform.reason:
        reform = reform.checked(float(largest[0]))
    stays = reform is None or reform.target == present
    return reform, bool(group.broadcast(b"stays" if stays else b""))


def begin_reform(
    body: bytes,
    group: Group,
    former: Parallelism,
    save: Callable[[], None],
    canaries: Canaries,
    rank0: StageRank0 | None,
) -> Reform | None:
    """Saves what the next ranks begin with; None if these ranks stay, and the caller of the change has been
    told why. A collective. former: their parallelism. save: may raise CheckpointError, on every rank alike.
    """
    began_s = time.monotonic()
    command = command_from_rank0(body)
    prepare_s = command.deadlines.prepare_s
    reason = f"no step boundary came within {prepare_s:g} s"
    if group.agree(began_s < command.requested_s + prepare_s):
        clock = PhaseClock()
        try:
            with clock.phase(SwitchPhase.SAVING):
                save()
            with clock.phase(SwitchPhase.CANARIES_BEFORE):
                before = canaries()
            return Reform(command, former, before, began_s, clock)
        except CheckpointError as error:
            reason = str(error)
    if rank0 is not None:
        seconds = time.monotonic() - command.requested_s
        stayed = SwitchOutcome(
            epoch=command.epoch, parallelism=former, rolled_back=True, message=reason, seconds=seconds
        )
        rank0.end_switch(command, stayed)
    return None
