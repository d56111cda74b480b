"""Engines join a pool and leave it while the others work; the engines live in this process."""

from __future__ import annotations

import pytest

from earl.errors import EngineError, IllegalParallelism, StaleEpoch
from earl.parallelism import Parallelism
from services.rollout.pool.devices import PoolDevices
from tests.support.pool import published, settle
from tests.unit.rollout.pool.test_switch import assert_whole, command, generating


def to(devices: int, epoch: int = 1, **fields):
    return command(epoch, Parallelism(devices), **fields)


async def test_engines_join_and_the_others_are_not_interrupted():
    async with generating(most=4) as (pool, made, turns):
        outcome = await pool.reparallelize(to(4))
        assert not outcome.rolled_back, outcome.message
        assert (outcome.parallelism, outcome.epoch, outcome.stall_s) == (Parallelism(4), 1, 0.0)
        assert outcome.sequences_continued == 0
        # Four prompts on each of two engines.
        assert outcome.logprobs_compared == 8 and outcome.max_logprob_difference == 0.0
        assert 0 < outcome.start_s + outcome.weights_s <= outcome.seconds
        assert (pool.parallelism, pool.epoch, pool.live) == (Parallelism(4), 1, 4)
        assert [engine.spec.name for engine in made[2:]] == ["e/engine-2-epoch-1", "e/engine-3-epoch-1"]
        assert not any(engine.gone.is_set() for engine in made)
        assert not any("pause" in engine.calls for engine in made)
        await pool.load(published(2))
        assert [engine.version for engine in made] == [2, 2, 2, 2]
        await pool.reparallelize(to(2, 2))
        for ids, task in turns:
            generation = await task
            assert generation.finish == "length" and len(generation.ids) == 200, ids


async def test_the_turns_of_an_engine_that_leaves_continue_with_the_others():
    async with generating(most=4) as (pool, made, turns):
        outcome = await pool.reparallelize(to(1))
        assert not outcome.rolled_back, outcome.message
        assert (pool.parallelism, pool.live) == (Parallelism(1), 1)
        assert sum(engine.gone.is_set() for engine in made) == 1
        await assert_whole(turns)


async def test_an_engine_that_does_not_start_leaves_the_pool_as_it_was():
    async with generating(most=4) as (pool, made, turns):

        def prepare(engine):
            engine.answer.set()

            async def fail():
                raise EngineError("no memory")

            engine.hooks["start"] = fail

        made.prepare = prepare
        outcome = await pool.reparallelize(to(3))
        assert outcome.rolled_back and "no memory" in outcome.message
        assert (pool.parallelism, pool.live, pool.epoch) == (Parallelism(2), 2, 0)
        assert made[2].gone.is_set()
        await assert_whole(turns)


async def test_an_engine_that_is_another_policy_gets_no_turns():
    async with generating(most=4) as (pool, made, turns):

        def prepare(engine):
            engine.answer.set()
            engine.skew = 1.0

        made.prepare = prepare
        outcome = await pool.reparallelize(to(3))
        assert outcome.rolled_back and "log-prob" in outcome.message
        assert [name for name in made[2].served if not name.startswith("canary")] == []
        assert made[2].gone.is_set() and pool.live == 2
        await assert_whole(turns)


async def test_an_engine_that_joined_is_replaced_when_it_dies():
    async with generating(most=4) as (pool, made, _):
        await pool.reparallelize(to(3))
        made[2].gone.set()
        await settle()
        assert pool.live == 3 and len(made) == 4


async def test_a_pool_gets_other_replicas_together_with_its_devices():
    async with generating(most=4) as (pool, made, turns):
        outcome = await pool.reparallelize(command(1, Parallelism(1, 4)))
        assert not outcome.rolled_back, outcome.message
        assert (pool.parallelism, pool.epoch, pool.live) == (Parallelism(1, 4), 1, 1)
        assert [engine.gone.is_set() for engine in made] == [True, True, False]
        # From here on four devices are its own: fewer come with other replicas, or with the same.
        with pytest.raises(IllegalParallelism, match="more than the 4 devices"):
            await pool.reparallelize(command(2, Parallelism(3, 2)))
        assert not (await pool.reparallelize(command(2, Parallelism(3)))).rolled_back
        assert not (await pool.reparallelize(command(3, Parallelism(2)))).rolled_back
        assert (pool.parallelism, pool.live) == (Parallelism(2), 2)
        await assert_whole(turns)


async def test_devices_and_replicas_are_rolled_back_together():
    async with generating(most=4) as (pool, made, turns):

        def prepare(engine):
            engine.answer.set()
            engine.skew = 1.0

        made.prepare = prepare
        outcome = await pool.reparallelize(command(1, Parallelism(2, 2)))
        assert outcome.rolled_back and (pool.parallelism, pool.live) == (Parallelism(2), 2)
        await assert_whole(turns)


async def test_what_a_pool_cannot_become_is_refused():
    async with generating(most=3) as (pool, _, turns):
        for parallelism in (Parallelism(4), Parallelism(1, 4), Parallelism(3, 1, 2)):
            with pytest.raises(IllegalParallelism):
                await pool.reparallelize(command(1, parallelism))
        assert not (await pool.reparallelize(to(3, 5))).rolled_back
        with pytest.raises(StaleEpoch):
            await pool.reparallelize(to(2, 4))
        await assert_whole(turns)
    async with generating() as (pool, _, _):
        with pytest.raises(IllegalParallelism, match="does not fit the 2 devices"):
            await pool.reparallelize(to(3))


async def test_engines_that_share_one_device_are_replaced_and_not_resized(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PoolDevices, "check", lambda devices, parallelism: None)
    async with generating() as (pool, made, turns):
        outcome = await pool.reparallelize(to(1))
        assert not outcome.rolled_back, outcome.message
        assert [engine.gone.is_set() for engine in made] == [True, True, False]
        await assert_whole(turns)
