"""The division of a pool of devices in a run: a decision a step, carried out, written down.

    commit ─► StepFigures ─► work of a batch ─► SplitPolicy.decide ─► DevicePool.ask, splits.jsonl

A step in which devices moved is no measure of either division, and is left out. Promise: no decision ends the
run; what cannot be carried out is logged, once for each reason. Time is an argument (monotonic seconds).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from earl.errors import EarlError
from earl.obs.metrics import LineFile
from earl.parallelism import ROLLOUT, TRAINER
from services.scheduler.monitor.workload import StepFigures
from services.scheduler.parallelism.device_pool import DevicePool
from services.scheduler.selector.split_policy import Split, SplitPolicy, SplitVerdict, SplitWork
from services.scheduler.state.switch_records import By

log = logging.getLogger(__name__)

NAME = "splits.jsonl"


class SplitLoop:
    """Decides how rollout and trainer divide their devices. last: the latest verdict; None before the first.

    first_cost_s: of a move, before one was measured. carries_out: whether devices follow the decisions.
    pinned: whether an operator keeps a stage as it is.
    """

    def __init__(
        self,
        pool: DevicePool,
        directory: Path,
        first_cost_s: float,
        *,
        carries_out: bool,
        pinned: Callable[[], bool] = lambda: False,
    ) -> None:
        self.last: SplitVerdict | None = None
        self._pool, self._first_cost_s = pool, first_cost_s
        self._carries_out, self._pinned = carries_out, pinned
        # Made once both stages work, of the divisions that they can have.
        self._policy: SplitPolicy | None = None
        self._file = LineFile(directory / NAME)
        # The last move that a step knew of, and whether it was running then.
        move = pool.moves.move
        self._known = None if move is None else (move.number, move.running)
        self._logged: set[str] = set()

    def step(self, committed: int, observed: StepFigures, *, now: float, last: bool) -> None:
        """Training step `committed` is done: decides for the next one. last: there will be none."""
        work, here, moved = work_of(observed), self._pool.moves.devices, self._disturbed()
        if self._policy is None and all(here):
            self._policy = SplitPolicy(self._pool.splits())
        if self._policy is None or work is None or moved:
            if self._policy is not None and moved:
                self._policy.begin()
            return
        costs_s = self._pool.moves.costs_s
        cost_s = median(costs_s) if costs_s else self._first_cost_s
        verdict = self.last = self._policy.decide(committed, here, work, cost_s)
        number, held = 0, ""
        if verdict.moves and self._carries_out and not last:
            number, held = self._carry_out(verdict, committed + 1, now)
        self._file.write(encode(verdict, committed + 1, cost_s, number, held))

    def close(self) -> None:
        self._file.close()

    def _disturbed(self) -> bool:
        """Returns whether devices moved in the step that has ended."""
        move, before = self._pool.moves.move, self._known
        self._known = None if move is None else (move.number, move.running)
        return self._known != before or (move is not None and move.running)

    def _carry_out(self, verdict: SplitVerdict, step: int, now: float) -> tuple[int, str]:
        """(number of the move that carries the decision out, 0 if none does; the reason)."""
        if self._pinned():
            return 0, "rollout or the trainer is pinned"
        try:
            move = self._pool.ask(verdict.best, by=By.SELECTOR, reason=verdict.sentence, now=now, step=step)
        except EarlError as error:
            if error.message not in self._logged:
                self._logged.add(error.message)
                log.info("step %d: devices do not move: %s", step, error.message)
            return 0, error.message
        log.info("step %d: %s", step, verdict.sentence)
        return (move.number if move is not None else 0), ""


def work_of(observed: StepFigures) -> SplitWork | None:
    """Device-seconds of a batch in both stages; None where a stage's rate was not measured."""
    rollout, trainer = observed.stages.get(ROLLOUT), observed.stages.get(TRAINER)
    if rollout is None or trainer is None:
        return None
    if not rollout.tokens_per_device_s or not trainer.tokens_per_device_s:
        return None
    tokens = trainer.workload.mean_tokens * trainer.workload.concurrency
    return SplitWork(tokens / rollout.tokens_per_device_s, tokens / trainer.tokens_per_device_s)


def encode(verdict: SplitVerdict, step: int, cost_s: float, move: int, held: str) -> dict[str, Any]:
    """A decision as splits.jsonl has it. move: number of the move that carries it out, 0 for none; held: why
    none does."""

    def named(split: Split) -> dict[str, int]:
        return {"rollout": split[0], "trainer": split[1]}

    return {
        "step": step,
        "here": named(verdict.here),
        "best": named(verdict.best),
        "moves": verdict.moves,
        "move": move,
        "held": held,
        "rollout_device_s": round(verdict.measured.rollout_s, 4),
        "trainer_device_s": round(verdict.measured.trainer_s, 4),
        "expected_rollout_device_s": round(verdict.work.rollout_s, 4),
        "expected_trainer_device_s": round(verdict.work.trainer_s, 4),
        "steps": verdict.steps,
        "lost_s": round(verdict.lost_s, 4),
        "threshold_s": round(verdict.threshold_s, 4),
        "cost_s": round(cost_s, 4),
        "candidates": [
            {**named(split), "step_s": round(seconds, 4)} for split, seconds in verdict.candidates.items()
        ],
        "sentence": verdict.sentence,
    }
