"""Ranks take another (dp, tp, cp) at a boundary of their work: the same tensors, in other boxes.

    prepare   groups · what the ranks become, on the meta device · enough memory?
              · checksums of what moves · canaries' log-probs
    move      tensor by tensor, old memory freed as new is taken (reshard.py)
    verify    checksums, and canaries' log-probs, again
                ─► the same, and within tolerance: on in the new parallelism
                └► others, beyond it, or too late: everything moves back, and checksums again

Promise: whatever a stage finds wrong, the ranks keep the parallelism that they had, with the same bits. A
rank that dies, and bits that do not come back, end the group, which starts again from what it keeps.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from earl.config.scheduler import SwitchStage
from earl.errors import TrainerError
from earl.models.return_pages import return_pages
from earl.obs.memory import available_bytes, cuda_available_bytes
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchCommand, SwitchOutcome
from services.trainer.ranks.phase_clock import PhaseClock, SwitchPhase
from services.trainer.ranks.process_group import Group
from services.trainer.reshard.checksum import checksums, differing, moved
from services.trainer.reshard.moving_tensor import MovingTensor
from services.trainer.reshard.reshard import CHUNK_BYTES, MoveReport, move

log = logging.getLogger(__name__)

# Sequences of random tokens, always the same; short, since they are computed while all else waits.
CANARIES, CANARY_TOKENS = 2, 32
_SEED = 20250613
# What of the memory that is free may be counted on.
_USABLE_FRACTION = 0.9


class ParallelismChange(ABC):
    """A stage's part of a switch: what its ranks are and become.

    parallelism: of the ranks before the change. Every method is a collective.
    """

    def __init__(self, group: Group, parallelism: Parallelism) -> None:
        self.group, self.parallelism = group, parallelism

    @abstractmethod
    def join(self, parallelism: Parallelism) -> None:
        """Takes the process groups of what the ranks become."""

    @abstractmethod
    def prepare(self) -> list[MovingTensor]:
        """Makes what the ranks become; returns its tensors.

        It has no memory yet but for tensors of which this rank's box stays the same: those share theirs.
        """

    @abstractmethod
    def canaries(self, *, new: bool) -> np.ndarray:
        """Log-probs of `canary_tokens`, float32, the same on every rank. new: after the move, else before.

        They vouch for what the ranks compute, not for the values of every tensor.
        """

    def reshard(self) -> None:
        """Frees what computing in the new parallelism left, if it left anything."""
        return

    @abstractmethod
    def keep(self) -> None:
        """Completes the change: closes what the ranks were before it."""

    @abstractmethod
    def drop(self) -> None:
        """Undoes the change: closes what the ranks would have become."""


def canary_tokens(vocabulary: int) -> np.ndarray:
    """Sequences to compare log-probs of before and after a switch: int32[CANARIES, CANARY_TOKENS]."""
    rng = np.random.Generator(np.random.Philox(_SEED))
    return rng.integers(0, vocabulary, (CANARIES, CANARY_TOKENS)).astype(np.int32)


def switch(command: SwitchCommand, change: ParallelismChange) -> SwitchOutcome:
    """Carries a command out; `change` is kept or dropped. A collective.

    Raises what a process group does when a rank is lost.
    """
    return _Switch(command, change).run()


def log_outcome(command: SwitchCommand, outcome: SwitchOutcome) -> None:
    """Logs how a switch ended."""
    if outcome.rolled_back:
        log.warning("epoch %d, %s, was rolled back: %s", command.epoch, command.parallelism, outcome.message)
    else:
        log.info(
            "epoch %d: %s for %s", command.epoch, outcome.parallelism, command.reason or "no reason given"
        )


class _Switch:
    def __init__(self, command: SwitchCommand, change: ParallelismChange) -> None:
        self._command, self._change, self._group = command, change, change.group
        self._clock = PhaseClock()
        self._moves: list[MoveReport] = []
        # The tensors whose values are copied, and their checksums before.
        self._moved: list[MovingTensor] = []
        self._checksums: list[int | None] = []
        self._difference, self._compared = 0.0, 0

    def run(self) -> SwitchOutcome:
        began_s = time.monotonic()
        until = self._command.requested_s + self._command.deadlines.prepare_s
        if not self._group.agree(time.monotonic() < until):
            return self._outcome(began_s, f"no step boundary came {self._within(SwitchStage.PREPARE)}")
        with self._clock.phase(SwitchPhase.GROUPS):
            self._change.join(self._command.parallelism)
        with self._clock.phase(SwitchPhase.MODEL):
            tensors = self._change.prepare()
        reason, before = self._prepare(tensors, until)
        if not reason:
            reason = self._carry_out(tensors, before)
        with self._clock.phase(SwitchPhase.ENDING):
            if reason:
                self._change.drop()
            else:
                self._change.keep()
        if self._moved:
            with self._clock.phase(SwitchPhase.PAGES):
                return_pages()
        return self._outcome(began_s, reason)

    # --- stages -----------------------------------------------------------------------------

    def _prepare(self, tensors: Sequence[MovingTensor], until: float) -> tuple[str, np.ndarray]:
        """(the reason that it cannot be or "", canaries' log-probs before)"""
        with self._clock.phase(SwitchPhase.MEMORY):
            reason = self._lacking(tensors)
            reason = next((text.decode() for text in self._group.gather(reason.encode()) if text), "")
        if reason:
            return reason, np.zeros(0, np.float32)
        with self._clock.phase(SwitchPhase.CHECKSUMS):
            self._moved = moved(tensors, self._group)
            self._checksums = checksums(self._moved, self._group, new=False)
        with self._clock.phase(SwitchPhase.CANARIES_BEFORE):
            before = self._change.canaries(new=False)
        in_time = self._group.agree(time.monotonic() < until)
        return "" if in_time else f"it was not prepared {self._within(SwitchStage.PREPARE)}", before

    def _lacking(self, tensors: Sequence[MovingTensor]) -> str:
        """Describes what lacks memory; "" if nothing does. A collective: ranks share their host's."""
        more_bytes = sum(tensor.new.size_bytes - tensor.old.size_bytes for tensor in tensors)
        largest = max((tensor.new.size_bytes for tensor in tensors if not tensor.in_place), default=0)
        # The buffers of both directions, what a round begins, and one tensor.
        need_bytes = max(0, more_bytes) + 3 * CHUNK_BYTES[self._group.device.type] + largest
        if self._group.device.type == "cpu":
            need_bytes = int(self._group.sum(torch.tensor([need_bytes]))[0])
            where, free_bytes = "host", available_bytes()
        else:
            where, free_bytes = "device", cuda_available_bytes()
        if need_bytes <= _USABLE_FRACTION * free_bytes:
            return ""
        return f"{need_bytes} bytes are needed while tensors move, and the {where} has {free_bytes} left"

    def _carry_out(self, tensors: Sequence[MovingTensor], before: np.ndarray) -> str:
        """Move, verify, and move back if need be; the reason for that, "" if the new parallelism stays."""
        switch_s = self._command.deadlines.switch_s
        subgroups, everyone = self._group.subgroups, (tuple(range(self._group.size)),)
        timeout_s = max(1.0, 2 * switch_s)
        with self._clock.phase(SwitchPhase.GROUPS):
            process_group = subgroups.take(everyone, timeout_s)
        try:
            with self._clock.phase(SwitchPhase.MOVING):
                report = move(tensors, self._group, process_group, until=time.monotonic() + switch_s)
            self._moves.append(report)
            if report.tensors < len(tensors):
                moved_of = f"{report.tensors} of {len(tensors)} tensors moved"
                reason = f"{moved_of} {self._within(SwitchStage.SWITCH)}"
            else:
                reason = self._verify(before)
            if reason:
                with self._clock.phase(SwitchPhase.MOVING_BACK):
                    self._change.reshard()
                    back = [tensor.reversed() for tensor in tensors[: report.tensors]]
                    self._moves.append(move(back, self._group, process_group))
                if changed := self._changed(new=False):
                    raise TrainerError(
                        f"{reason}; and after everything moved back {changed}",
                        "the ranks start again from their checkpoint; check this machine's memory",
                    )
            return reason
        finally:
            subgroups.give(everyone, timeout_s)

    def _verify(self, before: np.ndarray) -> str:
        """Describes what is wrong with the new parallelism; "" if nothing is."""
        began_s = time.monotonic()
        reason = self._changed(new=True)
        if not reason:
            with self._clock.phase(SwitchPhase.CANARIES_AFTER):
                reason = self._compare(before, self._change.canaries(new=True))
        if reason:
            return reason
        in_time = self._group.agree(time.monotonic() - began_s < self._command.deadlines.verify_s)
        return "" if in_time else f"it was not verified {self._within(SwitchStage.VERIFY)}"

    def _changed(self, *, new: bool) -> str:
        """Names tensors whose values are others than before the move; "" if none are. new: after it, else
        after moving back."""
        with self._clock.phase(SwitchPhase.CHECKSUMS):
            names = differing(self._moved, self._checksums, checksums(self._moved, self._group, new=new))
        return f"{len(names)} tensors have other values than before, such as {names[0]}" if names else ""

    def _compare(self, before: np.ndarray, after: np.ndarray) -> str:
        """Describes how far canaries' log-probs differ, if it is too far; else ""."""
        tolerance = self._command.logprob_tolerance
        # Positions that have no log-prob are 0 on both sides.
        self._compared = int(np.count_nonzero((before != 0) | (after != 0)))
        mine = torch.tensor([float(np.abs(after - before).max(initial=0.0))], dtype=torch.float64)
        # As numbers, NaN would be lost in a maximum.
        if not self._group.agree(bool(torch.isfinite(mine))):
            mine[0] = torch.inf
        self._difference = float(self._group.max(mine)[0])
        if self._difference > tolerance:
            return f"log-probs of canaries differ by {self._difference:.3g}, more than {tolerance:g}"
        return ""

    # --- the outcome ------------------------------------------------------------------------

    def _within(self, stage: SwitchStage) -> str:
        return f"within {stage.deadline_s(self._command.deadlines):g} s"

    def _outcome(self, began_s: float, reason: str) -> SwitchOutcome:
        """Returns the switch's outcome, with figures of all ranks. A collective."""
        now, command = time.monotonic(), self._command
        sent = self._group.sum(torch.tensor([sum(moved.sent_bytes for moved in self._moves)]))
        most = max((moved.peak_extra_bytes for moved in self._moves), default=0)
        # Every rank has the same phases, in the same order.
        phases = self._group.max(torch.tensor([*self._clock.seconds.values()], dtype=torch.float64))
        return SwitchOutcome(
            epoch=command.epoch,
            parallelism=self._change.parallelism if reason else command.parallelism,
            rolled_back=bool(reason),
            message=reason,
            stall_s=now - began_s,
            seconds=now - command.requested_s,
            moved_bytes=int(sent[0]),
            peak_extra_bytes=int(self._group.max(torch.tensor([most]))[0]),
            max_logprob_difference=self._difference,
            logprobs_compared=self._compared,
            phases_s=dict(zip(self._clock.seconds, phases.tolist(), strict=True)),
        )
