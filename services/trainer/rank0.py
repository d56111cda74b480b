"""The duties of the trainer's rank 0: it asks the scheduler for batches, and reports what was trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from earl.errors import EarlError
from services.trainer.api.batch_client import BatchClient
from services.trainer.checkpoint.manifest import TrainingProgress
from services.trainer.stage.commands import RankCommand
from services.trainer.stage.planned_layouts import PlannedTrainerLayouts
from services.trainer.stage.rank_resources import RankResources
from services.trainer.stage.stage_rank0 import SLACK_S, StageRank0

log = logging.getLogger(__name__)

# A NextBatch call waits this long for a plan; other ranks wait with it.
WAIT_S = 2.0
# Calls while leaving: the run's launcher waits stack.stop_s for all of it.
LEAVING_S = 3.0


class TrainerRank0:
    """The trainer's word with the scheduler; methods are called from the computing thread.

    best: version with the best evaluation, 0 if there is none; held: versions whose checkpoints must stay;
    both as the scheduler last reported. lost_replays: tickets of the last plan whose files cannot be read,
    which the next call reports.
    """

    def __init__(self, resources: RankResources, stage: StageRank0) -> None:
        self._io, self._requests = resources.io, resources.requests
        self.stage = stage
        self._batches = BatchClient(stage.scheduler)
        self.best = 0
        self.held: frozenset[int] = frozenset()
        self.lost_replays: Sequence[int] = ()
        plan, limits = resources.config.layout_plan, resources.config.switch
        self._layouts = PlannedTrainerLayouts(stage, plan, limits) if plan is not None else None

    def reconcile(self, progress: TrainingProgress) -> None:
        """Brings the ledger to what the parameters were trained on; a batch that was asked for before that is
        planned again."""
        self.stage.withdraw()
        ranges = progress.consumed.ranges
        rolled_back = self._io.run(
            self._batches.reconcile(progress.version, progress.next_batch_id, ranges),
            2 * self.stage.scheduler.retry_s + SLACK_S,
        )
        if rolled_back:
            log.warning("%d tickets trained after the checkpoint were rolled back", rolled_back)

    def next_command(self, version: int) -> bytes:
        """Returns the next command of all ranks, which have this version; IDLE after WAIT_S at the latest.

        Raises TrainerError if the ranks did not get the layout that the plan has for the version.
        """
        ends = self._requests.stop.is_set() or self._requests.run_ended.is_set()
        if self._layouts is not None and not ends and (switch := self._layouts.due(version)):
            return switch
        try:
            plan = self._next_plan()
        except EarlError as error:
            self._requests.ignore_if_stopping(error)
            return RankCommand.LEAVE.encode()
        if plan is not None:
            return RankCommand.TRAIN.encode(plan) if plan else RankCommand.IDLE.encode()
        if self._requests.stop.is_set():
            return RankCommand.LEAVE.encode()
        if self._requests.run_ended.is_set():
            return RankCommand.FINISH.encode()
        if self._requests.wants_save:
            return RankCommand.SAVE.encode()
        return self.stage.next_switch() or RankCommand.IDLE.encode()

    def _next_plan(self) -> bytes | None:
        """A serialised plan; b"" if none came in WAIT_S; None as soon as something is requested."""
        while not self._requests.stop.is_set():
            self._io.check()
            if self._requests.wants_save or self.stage.switch_waits:
                return None
            answer = self.stage.poll(lambda: self._batches.next_batch(WAIT_S, self.lost_replays))
            if answer is None:
                continue
            self.lost_replays = ()
            self.best, self.held = answer.best, answer.held
            if answer.run_ended and not answer.plan:
                self._requests.run_ended.set()
                return None
            return answer.plan
        return None

    def commit(self, batch_id: int, version: int, metrics: dict[str, float]) -> None:
        """Tells the scheduler that a batch's tickets are trained.

        A scheduler that is gone while the trainer leaves is no failure, nor one that was told and whose
        answer stayed out: the checkpoint that follows holds the batch, and the ledger is brought to it on
        resume.
        """
        self._tell(lambda deadline_s: self._batches.commit(batch_id, version, metrics, deadline_s))

    def record_checkpoint(self, progress: TrainingProgress, path: str) -> None:
        """Tells the scheduler of a checkpoint; one that is gone is no failure, as with `commit`."""
        ranges = progress.consumed.ranges
        self._tell(
            lambda deadline_s: self._batches.record_checkpoint(progress.version, path, ranges, deadline_s)
        )

    def _tell(self, call: Callable[[float], Coroutine[Any, Any, None]]) -> None:
        stop, run_ended = self._requests.stop, self._requests.run_ended.is_set()
        deadline_s = LEAVING_S if run_ended or stop.is_set() else self.stage.scheduler.retry_s
        try:
            self._io.run(call(deadline_s), 2 * deadline_s + SLACK_S, stop)
        except EarlError as error:
            if not run_ended:
                self._requests.ignore_if_stopping(error)
            else:
                log.warning("the scheduler was not told: %s", error)
