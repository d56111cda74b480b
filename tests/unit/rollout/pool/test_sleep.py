"""Engines of a pool that sleep while the trainer works: turns wait and continue, nothing is loaded meanwhile,
and an engine that dies in its sleep costs nothing."""

import asyncio

import pytest

from earl.errors import EngineError, ReshapeRefused, StaleEpoch
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchCommand
from services.rollout.pool.awake_time import AwakeTime
from tests.support.pool import greedy, published, request, running, settle, until


def answer(made) -> None:
    for engine in made:
        engine.answer.set()


async def test_a_pool_begins_asleep_and_generates_once_it_was_woken():
    async with running(asleep=True) as (pool, made, _):
        await pool.load(published(1))
        waiting = asyncio.create_task(pool.generate(request("a", new=2)))
        await settle()
        assert pool.live == 0 and [engine.calls for engine in made] == [["start"]] * 2
        assert await pool.set_asleep(True, 1) == 0.0
        assert await pool.set_asleep(False, 2) > 0.0
        assert [engine.calls for engine in made] == [["start", "wake", "load"]] * 2 and pool.version == 1
        answer(made)
        assert (await waiting).versions == [1, 1]


async def test_turns_continue_where_they_were_and_tokens_keep_their_versions():
    async with running(engines=1) as (pool, made, _):
        await pool.load(published(1))
        [engine] = made
        turn = asyncio.create_task(pool.generate(request("a", new=200)))
        engine.answer.set()
        await until(lambda: len(engine.kv.get("a", [])) > 20)
        await pool.set_asleep(True, 1)
        await pool.load(published(2))  # what is published meanwhile is loaded afterwards
        await settle()
        assert not turn.done() and engine.calls[-1] == "sleep" and pool.asleep and pool.live == 0
        await pool.set_asleep(False, 2)
        generation = await turn
        assert generation.ids == greedy([1], 200) and generation.finish == "length"
        assert set(generation.versions) == {1, 2} and generation.versions == sorted(generation.versions)
        assert pool.asleep_s > 0 and pool.waking_s > 0


async def test_an_engine_that_dies_in_its_sleep_is_started_when_the_others_are_woken():
    async with running() as (pool, made, _):
        await pool.load(published(1))
        turns = [asyncio.create_task(pool.generate(request(f"{n}", new=3))) for n in range(4)]
        await settle()
        await pool.set_asleep(True, 1)
        made[0].gone.set()
        await settle()
        assert len(made) == 2
        await pool.set_asleep(False, 2)
        await until(lambda: pool.live == 2)
        assert made[2].calls[:2] == ["start", "load"] and made[2].version == 1
        answer(made)
        assert [generation.ids for generation in await asyncio.gather(*turns)] == [greedy([1], 3)] * 4


async def test_an_engine_that_does_not_answer_is_ended():
    async def stuck():
        raise EngineError("stuck")

    async with running() as (pool, made, _):
        await pool.load(published(1))
        made[0].hooks["sleep"] = stuck
        await pool.set_asleep(True, 1)
        assert made[0].gone.is_set() and made[1].asleep
        await pool.set_asleep(False, 2)
        await until(lambda: pool.live == 2)


async def test_a_sleep_waits_for_the_load_that_runs():
    async with running(engines=1) as (pool, made, _):
        release = asyncio.Event()
        made[0].hooks["load"] = release.wait
        loading = asyncio.create_task(pool.load(published(1)))
        await settle()
        asleep = asyncio.create_task(pool.set_asleep(True, 1))
        await settle()
        assert not asleep.done()
        release.set()
        await asleep
        await loading
        assert made[0].calls == ["start", "load", "pause", "resume", "sleep"]


async def test_an_older_turn_and_a_switch_are_refused_while_engines_sleep():
    async with running() as (pool, made, _):
        await pool.load(published(1))
        await pool.set_asleep(True, 7)
        with pytest.raises(StaleEpoch, match="turn 6"):
            await pool.set_asleep(False, 6)
        with pytest.raises(ReshapeRefused, match="sleep while the trainer works"):
            await pool.reparallelize(SwitchCommand(epoch=1, parallelism=Parallelism(1, 2)))
        assert pool.asleep and all(engine.asleep for engine in made)


async def test_a_cancelled_call_leaves_the_turn_running():
    async with running(engines=1) as (pool, made, _):
        await pool.load(published(1))
        release = asyncio.Event()
        made[0].hooks["sleep"] = release.wait
        call = asyncio.create_task(pool.set_asleep(True, 1))
        await settle()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        release.set()
        assert await pool.set_asleep(True, 1) == 0.0 and made[0].asleep


async def test_deadlines_stand_still_while_engines_sleep():
    time = AwakeTime()
    async with time.timeout(60.0) as timer:
        time.stop()
        assert timer.when() is None
        async with time.timeout(30.0) as later:
            assert later.when() is None
        time.go_on()
        assert timer.when() is not None
        with pytest.raises(EngineError, match="late"):
            async with time.deadline(0.0, EngineError("late")):
                await asyncio.sleep(60.0)
    with pytest.raises(TimeoutError, match="its own"):
        async with time.deadline(60.0, EngineError("late")):
            raise TimeoutError("its own")
