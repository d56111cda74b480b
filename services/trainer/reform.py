"""Ranks join or leave the trainer at a step boundary: a new group of ranks takes over from a checkpoint.

    boundary: checkpoint · canaries' log-probs ─► the group ends ─► formations.py: the next one's ranks
        ─► load the checkpoint ─► canaries again ─► within tolerance: reconcile, publish, train
                                                 └► beyond it: the former ranks again, from that checkpoint

Promise: parameters, moments and counts are those of the boundary, with the tickets that they were trained on,
so nothing is trained twice and nothing is lost. A rank that dies between the two groups ends all processes:
the trainer starts again from the same checkpoint, with the ranks that it had last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from earl.errors import CheckpointError
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchCommand, SwitchOutcome
from services.trainer.ranks.codec import command_from_rank0
from services.trainer.reshard.trainer_state import canary_logprobs
from services.trainer.stage.stage_rank0 import StageRank0
from services.trainer.step.step import Stepper


@dataclass(frozen=True, slots=True)
class Reform:
    """A change of the trainer's ranks that has begun. former: the parallelism before it.

    canaries: their log-probs before it, float32[tokens]. began_s: of the boundary, by time.monotonic().
    reason: why the former ranks take over again; "" on the way to the new ones. difference: of the log-probs.
    """

    command: SwitchCommand
    former: Parallelism
    canaries: np.ndarray
    began_s: float
    reason: str = ""
    difference: float = 0.0

    @property
    def target(self) -> Parallelism:
        """The parallelism of the ranks that take over."""
        return self.former if self.reason else self.command.parallelism

    def checked(self, after: np.ndarray) -> Reform:
        """The same change once the new ranks have computed the canaries: with a reason if their log-probs
        differ too much. after: as `canaries`."""
        tolerance, difference = self.command.logprob_tolerance, float(np.abs(after - self.canaries).max())
        # Written so that NaN counts as too far apart.
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
        )


def stands(stepper: Stepper, reform: Reform | None) -> tuple[Reform | None, bool]:
    """(the change as far as this rank knows it, whether the ranks that took over stay). A collective.

    reform: what led to them, on rank 0, whose word counts.
    """
    after = canary_logprobs(stepper)
    if reform is not None and not reform.reason:
        reform = reform.checked(after)
    stays = reform is None or reform.target == stepper.mesh.parallelism
    return reform, bool(stepper.group.broadcast(b"stays" if stays else b""))


def begin_reform(
    body: bytes, stepper: Stepper, save: Callable[[], None], rank0: StageRank0 | None
) -> Reform | None:
    """Saves what the next ranks begin with; None if these ranks stay, and the caller of the change has been
    told why. A collective."""
    began_s = time.monotonic()
    command, former = command_from_rank0(body), stepper.mesh.parallelism
    prepare_s = command.deadlines.prepare_s
    reason = f"no step boundary came within {prepare_s:g} s"
    if stepper.group.agree(began_s < command.requested_s + prepare_s):
        try:
            save()
            return Reform(command, former, canary_logprobs(stepper), began_s)
        except CheckpointError as error:  # on every rank alike
            reason = str(error)
    if rank0 is not None:
        seconds = time.monotonic() - command.requested_s
        stayed = SwitchOutcome(
            epoch=command.epoch, parallelism=former, rolled_back=True, message=reason, seconds=seconds
        )
        rank0.end_switch(command, stayed)
    return None
