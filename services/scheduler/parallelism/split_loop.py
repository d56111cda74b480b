"""The division of a pool of devices in a run: a decision a step, carried out, written down.

    commit ─► StepFigures ─► work of a batch ─► SplitPolicy.decide ─► DevicePool.ask, splits.jsonl

With a profile of its stages the decision is about divisions and layouts together: the layouts of each stage
on every number of devices come from its policy in the selector's loop, and a move changes both.

Rollout's work is that of its engines while they generated, so that devices which wait count as free: over
DONE_STEPS steps, since episodes end in waves. A step in which devices moved, or a stage got another layout,
is no measure of either, and is left out. Promise: no decision ends the run; what cannot be carried out is
logged, once for each reason. Time is an argument (monotonic seconds).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from earl.errors import EarlError
from earl.obs.metrics import LineFile
from earl.parallelism import ROLLOUT, Parallelism, Replica
from services.scheduler.monitor.workload import DoneWork, ObservedWorkload, StepFigures
from services.scheduler.parallelism.device_pool import DevicePool
from services.scheduler.selector.division_layouts import DivisionLayouts, StageOptions, Weighed
from services.scheduler.selector.split_policy import Split, SplitPolicy, SplitVerdict, SplitWork
from services.scheduler.state.device_move import by_stage
from services.scheduler.state.switch_records import By

log = logging.getLogger(__name__)

NAME = "splits.jsonl"
# Steps that rollout's work is taken over.
DONE_STEPS = 3
# Candidates that are written down, at most; with two stages all of a pool of so many devices.
CANDIDATES = 64


class SplitLoop:
    """Decides how the stages of a pool divide its devices. last: the latest verdict; None before the first.

    first_cost_s: of a move, before one was measured. carries_out: whether devices follow the decisions.
    pinned: whether an operator keeps a stage as it is. weighed: the layouts of a stage on numbers of devices,
    for so many sequences that a device of it works on at once; none without a profile. slots: those of
    rollout. holds: whether a stage's layout holds one sequence of so many tokens.
    """

    def __init__(
        self,
        pool: DevicePool,
        directory: Path,
        first_cost_s: float,
        *,
        carries_out: bool,
        pinned: Callable[[], bool] = lambda: False,
        weighed: Callable[[str, Sequence[int], float], Weighed] = lambda stage, counts, slots: {},
        holds: Callable[[str, Parallelism, float], bool] = lambda stage, layout, tokens: True,
        slots: float = math.inf,
    ) -> None:
        self.last: SplitVerdict | None = None
        self._pool, self._first_cost_s = pool, first_cost_s
        self._carries_out, self._pinned = carries_out, pinned
        self._weighed, self._holds, self._slots = weighed, holds, slots
        # The step that the next decision is for.
        self._next = 1
        # Made once all stages work, of the divisions that they can have.
        self._policy: SplitPolicy | None = None
        # Rollout's replica, and the last switches of all stages, at the end of the last step.
        self._replica: Replica | None = None
        self._switches = pool.switches()
        self._done: deque[DoneWork] = deque(maxlen=DONE_STEPS)
        self._file = LineFile(directory / NAME)
        # The last move that a step knew of, and whether it was running then.
        move = pool.moves.move
        self._known = None if move is None else (move.number, move.running)
        self._logged: set[str] = set()

    def step(self, committed: int, observed: StepFigures, *, now: float, last: bool) -> None:
        """Training step `committed` is done: decides for the next one. last: there will be none."""
        self._next = committed + 1
        moves, running = self._pool.moves, self._pool.running()
        here, moved = moves.devices, self._disturbed()
        present = running[ROLLOUT].replica if ROLLOUT in running else self._replica
        former, self._replica = self._replica, present
        if former is not None and former != present:
            # Device-seconds of another replica are no measure of this one.
            self._done.clear()
        elif (rollout := observed.stages.get(ROLLOUT)) is not None and rollout.done is not None:
            self._done.append(rollout.done)
        work = work_of(observed, moves.stages, rollout_device_s(self._done))
        if self._policy is None and all(here):
            self._policy = SplitPolicy(self._pool.splits())
        if self._policy is None or work is None or moved or len(running) < len(here):
            if self._policy is not None and moved:
                self._policy.begin()
            return
        costs_s = moves.costs_s
        cost_s = median(costs_s) if costs_s else self._first_cost_s
        layouts = self._layouts(running)
        verdict = self.last = self._policy.decide(committed, here, work, cost_s, layouts)
        number, held = 0, ""
        if verdict.moves and self._carries_out and not last:
            number, held = self._carry_out(verdict, committed + 1, now)
        self._file.write(encode(verdict, moves.stages, committed + 1, cost_s, number, held))

    def relieve(self, tokens: float, *, now: float) -> bool:
        """A sequence of so many tokens waits, because no layout of rollout's devices holds it: begins the
        move to a division that does. Returns whether there is one, or it cannot be known now."""
        here, running = self._pool.moves.devices, self._pool.running()
        if not self._carries_out:
            return False
        if not all(here) or len(running) < len(here) or self._pool.is_switching:
            return True
        layouts = self._layouts(running, tokens)
        policy = self._policy = self._policy or SplitPolicy(self._pool.splits())
        verdict = None if layouts is None else policy.relieve(here, layouts, tokens)
        if verdict is None:
            return False
        self.last = verdict
        costs_s = self._pool.moves.costs_s
        cost_s = median(costs_s) if costs_s else self._first_cost_s
        number, held = self._carry_out(verdict, self._next, now)
        self._file.write(encode(verdict, self._pool.moves.stages, self._next, cost_s, number, held))
        return True

    def close(self) -> None:
        self._file.close()

    def _layouts(
        self, running: Mapping[str, Parallelism], waiting_tokens: float = 0.0
    ) -> DivisionLayouts | None:
        """The layouts of all stages on any number of devices; None if no stage has a profile.
        waiting_tokens: of a sequence that waits."""
        known: list[StageOptions] = []
        profiled = False
        for stage in self._pool.moves.stages:
            counts = self._pool.counts(stage)
            weighed = self._weighed(stage, counts, self._slots if stage == ROLLOUT else math.inf)

            def holds(layout: Parallelism, stage: str = stage) -> bool:
                return not waiting_tokens or self._holds(stage, layout, waiting_tokens)

            options = StageOptions.of(running[stage], weighed, holds)
            profiled = profiled or options is not None
            kept = [count for count in counts if self._pool.can_have(stage, count)]
            known.append(options or StageOptions.kept(running[stage], kept, holds))
        return DivisionLayouts(tuple(known), self._pool.moves.pool) if profiled else None

    def _disturbed(self) -> bool:
        """Returns whether devices moved, or a layout changed, in the step that has ended."""
        move, before, switches = self._pool.moves.move, self._known, self._switches
        self._known = None if move is None else (move.number, move.running)
        self._switches = self._pool.switches()
        running = self._pool.is_switching or (move is not None and move.running)
        return self._known != before or self._switches != switches or running

    def _carry_out(self, verdict: SplitVerdict, step: int, now: float) -> tuple[int, str]:
        """(number of the move that carries the decision out, 0 if none does; the reason)."""
        if self._pinned():
            return 0, "a stage of the pool is pinned"
        known = {} if verdict.layouts is None else verdict.layouts.by_stage(verdict.after)
        try:
            move = self._pool.ask(
                verdict.after, by=By.SELECTOR, reason=verdict.sentence, now=now, step=step,
                layouts={stage: (layout.dp, layout) for stage, layout in known.items()},
            )  # fmt: skip
        except EarlError as error:
            if error.message not in self._logged:
                self._logged.add(error.message)
                log.info("step %d: devices do not move: %s", step, error.message)
            return 0, error.message
        log.info("step %d: %s", step, verdict.sentence)
        return (move.number if move is not None else 0), ""


def rollout_device_s(done: Collection[DoneWork]) -> float | None:
    """Device-seconds of rollout for a batch; None where nothing was done."""
    batches, device_s = (math.fsum(getattr(each, name) for each in done) for name in ("batches", "device_s"))
    return device_s / batches if batches > 0 and device_s > 0 else None


def work_of(observed: StepFigures, stages: Sequence[str], rollout_s: float | None) -> SplitWork | None:
    """Device-seconds of a batch in each of the stages; None where a stage's rate was not measured.

    rollout_s: those of rollout.
    """
    seconds: list[float] = []
    for stage in stages:
        stage_s = rollout_s if stage == ROLLOUT else batch_device_s(observed.stages.get(stage))
        if stage_s is None:
            return None
        seconds.append(stage_s)
    return SplitWork(*seconds)


def batch_device_s(figures: ObservedWorkload | None) -> float | None:
    """Device-seconds of a stage that works on batches for one; None where its rate was not measured."""
    if figures is None or not figures.tokens_per_device_s:
        return None
    return figures.workload.mean_tokens * figures.workload.concurrency / figures.tokens_per_device_s


def encode(
    verdict: SplitVerdict, stages: Sequence[str], step: int, cost_s: float, move: int, held: str
) -> dict[str, Any]:
    """A decision as splits.jsonl has it. move: number of the move that carries it out, 0 for none; held: why
    none does. Of many candidates those that are quickest, and the division in use, each with its layouts
    where a profile knows them."""
    quickest = sorted(verdict.candidates, key=lambda split: verdict.candidates[split])[:CANDIDATES]

    def layouts(split: Split) -> dict[str, dict[str, str]]:
        known = () if verdict.layouts is None else verdict.layouts.layouts(split)
        texts = {stage: str(layout) for stage, layout in zip(stages, known, strict=False)}
        return {"layouts": texts} if texts else {}

    return {
        "step": step,
        "here": by_stage(verdict.here),
        "best": by_stage(verdict.best),
        "after": by_stage(verdict.after),
        "moves": verdict.moves,
        "urgent": verdict.urgent,
        "move": move,
        "held": held,
        **{f"{stage}_device_s": round(s, 4) for stage, s in zip(stages, verdict.measured, strict=False)},
        **{f"expected_{stage}_device_s": round(s, 4) for stage, s in zip(stages, verdict.work, strict=False)},
        "steps": verdict.steps,
        "lost_s": round(verdict.lost_s, 4),
        "threshold_s": round(verdict.threshold_s, 4),
        "cost_s": round(cost_s, 4),
        "candidates": [
            {**by_stage(split), "step_s": round(seconds, 4), **layouts(split)}
            for split, seconds in verdict.candidates.items()
            if split in quickest or split == verdict.here
        ],
        "sentence": verdict.sentence,
    }
