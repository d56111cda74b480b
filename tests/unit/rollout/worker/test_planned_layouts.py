"""Planned layouts over engines of this process: each version in its own, whichever comes when."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from earl.config.frozen_schedule import PinnedSchedule
from earl.config.layout_plan import LayoutPlan
from earl.config.scheduler import SwitchConfig
from earl.errors import EngineError, EngineLost, VersionGone
from earl.parallelism import ROLLOUT, TRAINER, Parallelism
from earl.switch_figures import StageSwitch
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.pool.pool import EnginePool
from services.rollout.worker.pinned_weights import PinnedWeights
from services.rollout.worker.planned_layouts import PlannedLayouts
from tests.support.pool import running, settle, until

DP2, TP2 = Parallelism(2), Parallelism(1, 2)
# Versions 2 and 3 on two engines, 4 and 5 on one of two devices, 6 and newer on two engines.
PLAN = LayoutPlan.of(["3 rollout tp=2", "5 rollout tp=1"], 2, {ROLLOUT: DP2, TRAINER: DP2})
SCHEDULE = PinnedSchedule(first=2, staleness=2)


@asynccontextmanager
async def planned():
    """(pinned weights, the pool, its engines, the switches that ended)."""
    ended: list[StageSwitch[Parallelism]] = []
    async with running(engines=2, restarts=3) as (pool, made, _):
        layouts = PlannedLayouts(pool, PLAN, SwitchConfig(), ended.append)
        pins = PinnedWeights(pool, SCHEDULE, BusySpans(), layouts)
        run = asyncio.create_task(pins.run())
        yield pins, pool, made, ended
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await pins.stop()


class PlayedEpisode:
    """An episode of a version, which plays until it is ended in the layout that it began in."""

    def __init__(self, pins: PinnedWeights, pool: EnginePool, version: int) -> None:
        self.layout: Parallelism | None = None
        self._end = asyncio.Event()
        self.task = asyncio.create_task(self._play(pins, pool, version))

    async def _play(self, pins: PinnedWeights, pool: EnginePool, version: int) -> None:
        async with pins.playing(version):
            assert pool.version == version
            self.layout = pool.parallelism
            await self._end.wait()
            assert (pool.version, pool.parallelism) == (version, self.layout)

    async def end(self) -> None:
        self._end.set()
        await self.task


async def test_engines_change_between_versions_and_never_under_an_episode() -> None:
    async with planned() as (pins, pool, _, ended):
        pins.offer(3, [])
        older = PlayedEpisode(pins, pool, 3)
        await until(lambda: older.layout)
        pins.offer(4, [])
        newer = PlayedEpisode(pins, pool, 4)
        await settle()
        assert older.layout == DP2 and newer.layout is None and not ended
        await older.end()
        await until(lambda: newer.layout)
        assert newer.layout == TP2
        [switch] = ended
        assert (switch.epoch, switch.before, switch.after, switch.rolled_back) == (1, DP2, TP2, False)
        assert "from step 3 on" in switch.reason and pool.epoch == 1
        await newer.end()


async def test_an_episode_of_an_older_version_that_is_played_again_gets_its_layout_back() -> None:
    async with planned() as (pins, pool, _, ended):
        pins.offer(4, [])
        for version, layout in ((4, TP2), (3, DP2), (4, TP2)):
            episode = PlayedEpisode(pins, pool, version)
            await until(lambda episode=episode: episode.layout)
            assert episode.layout == layout
            await episode.end()
        assert [switch.epoch for switch in ended] == [1, 2, 3]


async def test_a_worker_that_starts_late_goes_to_the_present_layout_at_once() -> None:
    async with planned() as (pins, pool, _, ended):
        pins.offer(5, [])
        await until(lambda: pool.parallelism == TP2 and ended)
        pins.offer(9, [])  # no version before 7 is needed any more
        await until(lambda: pool.parallelism == DP2 and len(ended) == 2)


async def test_a_layout_that_engines_do_not_get_fails_the_episode_and_is_tried_again() -> None:
    async with planned() as (pins, pool, made, ended):
        pins.offer(3, [])
        await until(lambda: pool.version == 3)

        async def lost() -> None:
            raise EngineLost("no engine of two devices starts")

        def prepare(engine) -> None:
            engine.hooks["start"] = lost

        made.prepare = prepare
        with pytest.raises(EngineError, match="keep dp2, and the plan has tp2 for version 4"):
            pins.offer(4, [])
            async with pins.playing(4):
                raise AssertionError("played in another layout")
        assert ended[0].rolled_back and pool.parallelism == DP2
        made.prepare = lambda engine: None
        async with pins.playing(4):
            assert pool.parallelism == TP2
        assert ended[-1].epoch > ended[0].epoch and not ended[-1].rolled_back


async def test_a_version_that_is_dropped_while_engines_change_for_it_is_given_up() -> None:
    """Other workers have played its episodes, and no newer one comes before this switch has ended."""
    async with planned() as (pins, pool, made, ended):
        pins.offer(3, [])
        await until(lambda: pool.version == 3)
        tried = asyncio.Event()

        async def loads() -> None:
            tried.set()

        def prepare(engine) -> None:
            engine.hooks["load"] = loads
            engine.vanished.add(4)

        made.prepare = prepare
        pins.offer(4, [])
        episode = PlayedEpisode(pins, pool, 4)
        await asyncio.wait_for(tried.wait(), 10)
        # While the trainer still keeps it, it is waited for.
        await settle()
        assert not episode.task.done() and pool.parallelism == DP2
        made.prepare = lambda engine: None
        pins.offer(9, [])
        with pytest.raises(VersionGone, match="version 4 is not kept any more"):
            await episode.task
        assert episode.layout is None and not ended
        await until(lambda: pool.version == 9)
        assert pool.parallelism == DP2
