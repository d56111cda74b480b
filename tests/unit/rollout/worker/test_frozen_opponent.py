"""The frozen opponent over engines of this process: one version at a time, again when it is made again."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from earl.config.frozen_schedule import FrozenSchedule
from earl.errors import VersionGone
from earl.obs.memory import DeviceMemory
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.pool.devices import PoolDevices
from services.rollout.pool.pool import EnginePool
from services.rollout.worker import version_holder
from services.rollout.worker.agent import EpisodeAgent
from services.rollout.worker.frozen_opponent import FrozenOpponent
from services.rollout.worker.gauges import Gauges, WorkerLoad
from tests.support.pool import CONTEXT, MODEL, Made, request, running, until
from tests.unit.rollout.worker.test_agent import Sessions

SCHEDULE = FrozenSchedule(first=1, every=4, staleness=2)


@asynccontextmanager
async def opponent(made: Made):
    """A frozen opponent with two engines, and the task of its engines."""
    base = EngineSpec(name="e", model_dir="", max_context_tokens=CONTEXT)
    pool = EnginePool(PoolDevices(base, 2, MODEL), made, restarts=1, load_s=5.0)
    playing = FrozenOpponent(pool, SCHEDULE)
    run = asyncio.create_task(playing.run())
    try:
        yield playing
    finally:
        await playing.stop()
        await asyncio.gather(run, return_exceptions=True)
        assert all(engine.gone.is_set() for engine in made)


class Episode:
    """An episode against a version: it has begun when it may play, and plays until it is ended."""

    def __init__(self, against: FrozenOpponent, version: int) -> None:
        self.version = version
        self.begun, self._end = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._play(against))

    async def _play(self, against: FrozenOpponent) -> None:
        async with against.playing(self.version):
            self.begun.set()
            await self._end.wait()

    async def end(self) -> None:
        self._end.set()
        await self.task


def versions(made: Made) -> list[int]:
    return [engine.version for engine in made]


async def test_engines_have_the_version_that_is_played_against():
    made = Made()
    async with opponent(made) as frozen:
        frozen.offer(3)
        async with frozen.playing(1):
            for engine in made:
                engine.answer.set()
            answer = await frozen.generate(request("a"))
            assert (set(answer.versions), frozen.version) == ({1}, 1)
            await frozen.release("a")
        assert [engine.calls.count("load") for engine in made] == [1, 1]
        async with frozen.playing(1):
            assert [engine.calls.count("load") for engine in made] == [1, 1]


async def test_another_version_waits_until_the_first_is_no_longer_played_against():
    made = Made()
    async with opponent(made) as frozen:
        frozen.offer(5)
        first, second = Episode(frozen, 1), Episode(frozen, 1)
        await first.begun.wait()
        await second.begun.wait()
        newer = Episode(frozen, 5)
        # One that asks later for what is loaded does not go ahead, or the newer one might wait for ever.
        late = Episode(frozen, 1)
        await first.end()
        assert versions(made) == [1, 1] and not newer.begun.is_set() and not late.begun.is_set()
        await second.end()
        await newer.begun.wait()
        assert versions(made) == [5, 5] and not late.begun.is_set()
        await newer.end()
        await late.begun.wait()
        assert versions(made) == [1, 1]
        await late.end()


async def test_a_version_that_is_made_again_is_loaded_again():
    made = Made()
    async with opponent(made) as frozen:
        frozen.offer(6)
        async with frozen.playing(5):
            pass
        frozen.offer(3)  # the trainer went back: version 5 will be another one
        assert frozen.version == 0
        frozen.offer(5)
        async with frozen.playing(5):
            assert [engine.calls.count("load") for engine in made] == [2, 2]
        frozen.offer(5)  # it went back to what was frozen, which is the same
        assert frozen.version == 5


async def test_a_trainer_that_is_away_is_waited_for_and_what_it_gave_up_is_not(monkeypatch):
    monkeypatch.setattr(version_holder, "RETRY_S", 0.0)
    made = Made()
    made.prepare = lambda engine: engine.vanished.update({1, 5})
    async with opponent(made) as frozen:
        frozen.offer(6)
        episode = Episode(frozen, 5)
        await until(lambda: made and made[0].calls.count("load") > 3)
        assert not episode.begun.is_set()
        for engine in made:
            engine.vanished.clear()
        await episode.begun.wait()
        await episode.end()
        for engine in made:
            engine.vanished.add(1)
        assert SCHEDULE.needed(7) == [5]
        frozen.offer(7)
        with pytest.raises(VersionGone):
            await Episode(frozen, 1).task


async def test_an_episode_that_is_cancelled_while_it_waits_leaves_the_others_their_turn():
    made = Made()
    async with opponent(made) as frozen:
        frozen.offer(5)
        first = Episode(frozen, 1)
        await first.begun.wait()
        given_up, next_one = Episode(frozen, 5), Episode(frozen, 5)
        await asyncio.sleep(0)
        given_up.task.cancel()
        await first.end()
        await next_one.begun.wait()
        assert versions(made) == [5, 5]
        await next_one.end()
        assert given_up.task.cancelled()


async def test_the_opponents_engines_count_in_the_workers_memory_alone():
    made = Made()
    async with running(engines=1) as (pool, own, _), opponent(made) as frozen:
        frozen.offer(1)
        async with frozen.playing(1):
            for engine in (*own, *made):
                engine.memory = DeviceMemory(10, 100, "host")
        spans, sessions = BusySpans(), Sessions()
        gauges = Gauges(pool, EpisodeAgent(pool, sessions, spans, {}), spans, opponent=frozen)
        await gauges.refresh(timeout_s=5.0)
        values = gauges.values(WorkerLoad(0, 0, 0.0, False), 0.0)
        assert (values["memory_fraction"], len(gauges.engines)) == (0.3, 1)
        await gauges.close()


async def test_engines_that_died_without_the_version_get_it_with_the_next_episode(monkeypatch):
    monkeypatch.setattr(version_holder, "RETRY_S", 0.0)
    made = Made()
    async with opponent(made) as frozen:
        frozen.offer(2)
        async with frozen.playing(1):
            pass
        made.prepare = lambda engine: engine.vanished.add(1)
        for engine in list(made):
            engine.gone.set()
        # New ones start; the trainer is away just then.
        await until(lambda: len(made) == 4 and all("load" in engine.calls for engine in made[2:]))
        for engine in made[2:]:
            engine.vanished.clear()
        async with frozen.playing(1):
            assert versions(made)[2:] == [1, 1]
