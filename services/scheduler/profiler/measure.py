"""Measures a stage: its parallelisms one after the other, each with one probe that serves all of its points.

time left ÷ parallelisms left ─► probe ─► Progress.next ─► window ─► cache, at once ─► … ─► rows
                                   └── out of memory: the point does not fit; the rest with another probe
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from earl.config.run import RunConfig
from earl.errors import DeadlineExceeded, OutOfMemory
from earl.parallelism import Parallelism
from earl.profiling import ProfileJob, Visit
from services.scheduler.profile.plan import LEAST, MOST, ProfilePoint, ProfileProgress, halves
from services.scheduler.profile.stages import StagePlan
from services.scheduler.profiler.cache import Cache
from services.scheduler.profiler.probe import StageProbe

# Seconds of one window; what prepares it takes about as long again.
SHORTEST_S, LONGEST_S = 0.2, 4.0
# How long a visit may still run when the time has run out.
GRACE_S = 60.0

Say = Callable[[str], None]
# What of the run file bounds a sequence, by stage.
BOUNDS = {"rollout": "rollout.kv_tokens", "trainer": "trainer.microbatch_tokens"}


class Measuring:
    """One stage of a run file. model, directory: a checkpoint's, and one for jobs and logs.

    say: gets a line for every point that is known. window_s: of one window at most.
    """

    def __init__(
        self,
        plan: StagePlan,
        config: RunConfig,
        model: Path,
        directory: Path,
        cache: Cache,
        say: Say,
        window_s: float = LONGEST_S,
    ) -> None:
        self._window_s = window_s
        self._plan, self._cache, self._say = plan, cache, say
        self._bounds = [
            *filter(None, [BOUNDS.get(plan.stage)]),
            *(["the memory of paced.table"] if config.pace is not None else []),
        ]
        self._run, self._model, self._directory = config.model_dump_json(), str(model), directory
        self.progress = cache.known(plan.points)

    @property
    def lacking(self) -> dict[Parallelism, list[ProfilePoint]]:
        """Points that are requested and not measured yet, by parallelism; empty when all are."""
        lacking = {parallelism: self.progress[parallelism].lacking() for parallelism in self._plan.points}
        return {parallelism: points for parallelism, points in lacking.items() if points}

    async def run(self, seconds: float) -> None:
        """Measures what is lacking for about so long. The cache is held. Raises ProcessFailed."""
        ends = time.monotonic() + seconds
        for parallelism, loads in self._plan.loads.items():
            for point, load in loads.items():
                if load is None and not self.progress[parallelism].bursts(point):
                    self._burst(parallelism, point, f"a sequence exceeds {' or '.join(self._bounds)}")
        waiting = list(self.lacking)
        for number, parallelism in enumerate(waiting):
            left = ends - time.monotonic()
            await self._measure(parallelism, left / (len(waiting) - number))

    async def _measure(self, parallelism: Parallelism, seconds: float) -> None:
        progress = self.progress[parallelism]
        ends = time.monotonic() + seconds
        groups = [progress.lacking()]
        window_s = min(max(seconds / (2 * MOST * len(groups[0])), SHORTEST_S), self._window_s)
        while groups:
            group = [point for point in groups.pop() if not progress.bursts(point)]
            if not group or time.monotonic() >= ends:
                continue
            try:
                probe = await StageProbe.start(self._job(parallelism, group), self._directory)
            except OutOfMemory as error:
                if len(group) == 1:
                    self._burst(parallelism, group[0], error.message)
                else:
                    groups += reversed(halves(group))
                continue
            try:
                await self._visits(probe, progress, group, ends, window_s)
            except _DoesNotFit as error:
                self._burst(parallelism, error.point, "ran out of memory")
                groups.append(group)
            finally:
                await probe.stop()

    async def _visits(
        self,
        probe: StageProbe,
        progress: ProfileProgress,
        group: list[ProfilePoint],
        ends: float,
        window_s: float,
    ) -> None:
        """One at least, whatever time the start has left, so that a profile is complete after some runs.

        Raises _DoesNotFit.
        """
        point = progress.next(ends - time.monotonic(), group) or group[0]
        while point is not None:
            started = time.monotonic()
            try:
                visit = Visit(*self._at_work(progress.parallelism, point), window_s)
                sample = await probe.visit(visit, max(0.0, ends - started) + GRACE_S)
            except OutOfMemory as error:
                raise _DoesNotFit(point) from error
            except DeadlineExceeded as error:
                self._say(f"{self._name(progress.parallelism, point)}: left out: {error.message}")
                return
            window = (sample.tokens_per_device_s, time.monotonic() - started, sample.peak_memory_fraction)
            progress.note(point, *window)
            self._cache.note(progress.parallelism, point, *window)
            if progress.windows(point) == LEAST:
                self._say(f"{self._name(progress.parallelism, point)}: {progress.describe(point)}")
            point = progress.next(ends - time.monotonic(), group)

    def _at_work(self, parallelism: Parallelism, point: ProfilePoint) -> ProfilePoint:
        """Returns a point that fits, with the sequences that run at once there."""
        return self._plan.loads[parallelism][point] or point

    def _burst(self, parallelism: Parallelism, point: ProfilePoint, reason: str) -> None:
        self.progress[parallelism].note_oom(point)
        self._cache.note_oom(parallelism, point)
        self._say(f"{self._name(parallelism, point)}: does not fit: {reason}")

    def _name(self, parallelism: Parallelism, point: ProfilePoint) -> str:
        return f"{self._plan.stage} {parallelism}, {point.context_tokens} tokens x {point.concurrency}"

    def _job(self, parallelism: Parallelism, group: list[ProfilePoint]) -> ProfileJob:
        loads = dict.fromkeys(self._at_work(parallelism, point) for point in group)
        points = tuple((point.context_tokens, point.concurrency) for point in loads)
        return ProfileJob(
            self._plan.stage, self._run, self._model, parallelism.dp, parallelism.tp, points, parallelism.cp
        )


class _DoesNotFit(Exception):
    """A probe ended because a point needs too much memory."""

    def __init__(self, point: ProfilePoint) -> None:
        super().__init__(point)
        self.point = point
