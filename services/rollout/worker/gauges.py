"""The figures of a heartbeat, from the engines' counters and the worker's episodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from earl.obs.memory import fullest
from earl.worker_report import BusySpan, TransferTotals, WorkerDevice, totals_by_path
from services.rollout.engines.contract.engine import EngineStats
from services.rollout.episode.busy_spans import BusySpans, Rate, few
from services.rollout.pool.host_copy import CopyReads
from services.rollout.pool.pool import EnginePool
from services.rollout.worker.agent import EpisodeAgent
from services.rollout.worker.frozen_opponent import FrozenOpponent
from services.rollout.worker.ticket import EpisodeOutcome

# Spans of one engine that one heartbeat carries.
ENGINE_SPANS = 4


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A worker's load. unreported: finished episodes that the scheduler does not know yet.

    waits_for_host_s: how long it has waited for an environment host, 0 while it does not.
    """

    running: int
    unreported: int
    arena_used_fraction: float
    arena_blocked: bool
    waits_for_host_s: float = 0.0


class Gauges:
    """Polls the engines; a heartbeat never waits for one that is stuck.

    unknown_words: what the tokenizer has read and does not have; it grows. opponent: of its engines only the
    memory counts.
    """

    def __init__(
        self,
        pool: EnginePool,
        agent: EpisodeAgent,
        spans: BusySpans,
        unknown_words: Collection[str] = (),
        opponent: FrozenOpponent | None = None,
    ) -> None:
        self.spans = spans
        self._unknown_words = unknown_words
        # The gauges of the last heartbeat.
        self.latest: dict[str, float] = {}
        self.engines: list[EngineStats] = []
        self._pool, self._opponent = pool, opponent
        self._opponents: list[EngineStats] = []
        self._agent = agent
        self._poll: asyncio.Task | None = None
        self.endings: Counter[str] = Counter()
        self._generated = Rate()
        self._prefilled = Rate()
        self._steps = Rate()
        self._waited = Rate()
        self._finished = Rate()

    def ended(self, outcome: EpisodeOutcome) -> None:
        """Counts an episode's ending."""
        self.endings[outcome.ending.name.lower()] += 1

    async def refresh(self, timeout_s: float) -> None:
        """Takes the engines' counters if they answer within timeout_s; otherwise the next call does."""
        if self._poll is None:
            self._poll = asyncio.create_task(self._stats())
        done, _ = await asyncio.wait([self._poll], timeout=timeout_s)
        if not done:
            return
        (self.engines, self._opponents), self._poll = self._poll.result(), None

    async def _stats(self) -> tuple[list[EngineStats], list[EngineStats]]:
        """Stats of the worker's engines that answer, and of its opponent's."""
        stats = await self._pool.stats()
        opponents = await self._opponent.stats() if self._opponent is not None else []
        return [each for each in stats if each is not None], [each for each in opponents if each is not None]

    def values(self, load: WorkerLoad, now_s: float) -> dict[str, float]:
        """Gauges by name, units in the names."""
        steps_per_s = self._steps(self._agent.steps, now_s)
        waited_s_per_s = self._waited(self._agent.step_wait_s, now_s)
        values = {
            "running_episodes": float(load.running),
            "unreported_episodes": float(load.unreported),
            "arena_used_fraction": load.arena_used_fraction,
            "arena_blocked": float(load.arena_blocked),
            "waits_for_host_s": load.waits_for_host_s,
            "unknown_words": float(len(self._unknown_words)),
            "engines_live": float(self._pool.live),
            "asleep": float(self._pool.asleep),
            "asleep_s": self._pool.asleep_s,
            "waking_s": self._pool.waking_s,
            "episodes_per_s": self._finished(self.endings.total(), now_s),
            "env_steps_per_s": steps_per_s,
            "env_step_mean_s": waited_s_per_s / steps_per_s if steps_per_s else 0.0,
            "generated_tokens_per_s": self._generated(self._sum(lambda stats: stats.generated_tokens), now_s),
            "prefilled_tokens_per_s": self._prefilled(self._sum(lambda stats: stats.prefilled_tokens), now_s),
            "kv_used_fraction": max((engine.kv_used_fraction for engine in self.engines), default=0.0),
            "kv_tokens": self._sum(lambda stats: stats.kv_tokens),
            "kv_used_tokens": self._sum(lambda stats: stats.kv_used_tokens),
            "kv_committed_tokens": self._sum(lambda stats: stats.kv_committed_tokens),
            "engine_running": self._sum(lambda stats: stats.running),
            # Contexts that the engines in use cannot hold, and those that no parallelism could.
            "blocked_sequences": float(len(self._pool.router.blocked)),
            "blocked_context_tokens": float(max(self._pool.router.blocked.values(), default=0)),
            "contexts_refused": float(self._pool.router.refused),
            "moved_sequences": float(self._pool.router.moved),
            "engine_waiting": self._sum(lambda stats: stats.waiting),
        }
        engines = (*self.engines, *self._opponents)
        memory = fullest(engine.memory for engine in engines if engine.memory is not None)
        if memory is not None:
            values["memory_fraction"] = memory
        counters = self._pool.counters
        if counters.paced_steps:
            values |= {
                "paced_steps": float(counters.paced_steps),
                "late_steps": float(counters.late_steps),
            }
        values |= counters.drafts.figures()
        if counters.busy_device_s is not None:
            values["busy_device_s"] = counters.busy_device_s
        for ending, count in self.endings.items():
            values[f"episodes_{ending}"] = float(count)
        self.latest = values
        return values

    def _sum(self, figure: Callable[[EngineStats], float]) -> float:
        """The sum of a figure over all engines."""
        return float(sum(map(figure, self.engines)))

    def take_spans(self, now_ns: int) -> list[BusySpan]:
        """Returns the activity since the last call as a few spans of each kind."""
        spans = self.spans.take(now_ns)
        for what, busy in self._pool.counters.take_busy().items():
            spans += [BusySpan(what, start, end) for start, end in few(busy, ENGINE_SPANS)]
        return spans

    def transfers(self) -> list[TransferTotals]:
        """Totals of the engines' reads, and of the pool's for them, by path."""
        read = [part for engine in self.engines for part in engine.transfers]
        return totals_by_path([*read, *self._pool.transfers])

    @property
    def copy_reads(self) -> CopyReads | None:
        """Versions that the pool read for its engines; None if it never does."""
        return self._pool.copy_reads

    def devices(self) -> list[WorkerDevice]:
        """The device of each rank of the worker's engines and of its opponent's."""
        return [device for engine in (*self.engines, *self._opponents) for device in engine.devices]

    async def close(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)
