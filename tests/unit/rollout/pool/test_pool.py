"""The pool over engines that live in this process: routing, restarts, versions."""

import asyncio

import pytest

from earl.errors import (
    DeadlineExceeded,
    EngineLost,
    PeerLost,
    ProcessFailed,
    ReadTimeout,
    VersionGone,
    WeightsIncomplete,
)
from services.rollout.pool import replicas
from tests.support.pool import InMemory, greedy, published, request, running, settle, until


async def test_nothing_is_generated_before_the_first_version():
    async with running() as (pool, made, _):
        waiting = asyncio.create_task(pool.generate(request("a")))
        await settle()
        assert [engine.served for engine in made] == [[], []]
        await pool.load(published(1))
        assert pool.version == 1
        for engine in made:
            engine.answer.set()
        assert (await waiting).versions == [1]


async def test_least_loaded_engine_is_taken_and_a_session_stays():
    async with running() as (pool, made, _):
        await pool.load(published(1))
        tasks = [asyncio.create_task(pool.generate(request(f"{n}/1", f"{n}"))) for n in range(4)]
        await settle()
        assert [sorted(engine.served) for engine in made] == [["0/1", "2/1"], ["1/1", "3/1"]]
        for engine in made:
            engine.answer.set()
        await asyncio.gather(*tasks)
        await pool.generate(request("1/2", "1"))
        assert made[1].served[-1] == "1/2"
        await pool.release("1")
        assert made[1].released == ["1"]


async def test_a_session_begins_at_the_engine_that_it_is_planned_for():
    async with running() as (pool, made, _):
        await pool.load(published(1))
        for engine in made:
            engine.answer.set()
        for name, preferred in (("a", 1), ("b", 1), ("c", 7), ("d", None)):
            pool.router.prefer(name, preferred)
        for name in "abcd":
            await pool.generate(request(f"{name}/1", name))
        assert made[1].served == ["a/1", "b/1"] and made[0].served == ["c/1", "d/1"]
        # It is for the beginning alone: where it is then, it stays.
        pool.router.prefer("c", 1)
        await pool.generate(request("c/2", "c"))
        assert made[0].served[-1] == "c/2"
        pool.router.prefer("e", 1)
        pool.router.prefer("e", None)
        await pool.generate(request("e/1", "e"))
        assert made[0].served[-1] == "e/1"


async def test_a_session_that_moves_continues_its_turn_at_the_other_engine():
    async with running() as (pool, made, _):
        await pool.load(published(1))
        router = pool.router
        made[0].answer.set()
        turn = asyncio.create_task(pool.generate(request("a/1", "a", new=40, ids=[1, 2, 3])))
        await until(lambda: len(made[0].kv.get("a", ())) > 10)
        assert await router.move("a", router.replicas.all[1])
        await settle()
        assert (made[1].served, made[0].released) == (["a/1"], ["a"])
        made[1].answer.set()
        answer = await turn
        assert (answer.ids, answer.finish) == (greedy([1, 2, 3], 40), "length")
        await pool.generate(request("a/2", "a"))
        assert made[1].served[-1] == "a/2" and [each.running for each in router.replicas.all] == [0, 0]
        assert (router.moved, router.continued) == (1, 0)


async def test_a_moved_session_leaves_nothing_behind_however_its_turn_ends():
    async with running() as (pool, made, _):
        await pool.load(published(1))
        turn = asyncio.create_task(pool.generate(request("a/1", "a")))
        await settle()
        assert await pool.router.move("a", pool.router.replicas.all[1])
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        assert made[0].released == ["a"]
        await pool.release("a")
        assert made[1].released == ["a"]


async def test_a_session_between_turns_moves_and_leaves_nothing_behind():
    async with running() as (pool, made, _):
        await pool.load(published(1))
        for engine in made:
            engine.answer.set()
        await pool.generate(request("a/1", "a", ids=[1, 2, 3]))
        engines = pool.router.replicas.all
        assert pool.router.sequences(engines) == {"a": (0, 4, 1)}
        assert await pool.router.move("a", engines[1])
        assert made[0].released == ["a"] and pool.router.sequences(engines) == {"a": (1, 4, 1)}
        await pool.generate(request("a/2", "a"))
        assert made[1].served == ["a/2"]


async def test_what_has_ended_and_engines_that_are_gone_move_nothing():
    async with running() as (pool, made, _):
        await pool.load(published(1))
        for engine in made:
            engine.answer.set()
        first, second = pool.router.replicas.all
        await pool.generate(request("a/1", "a"))
        assert not await pool.router.move("b", second)
        assert not await pool.router.move("a", first)
        second.version = 0
        assert not await pool.router.move("a", second)
        await pool.release("a")
        second.version = 1
        assert not await pool.router.move("a", second)
        assert pool.router.moved == 0 and made[1].served == []


async def test_a_dead_engine_fails_its_requests_and_comes_back_with_the_newest_weights():
    async with running() as (pool, made, _):
        await pool.load(published(1))
        tasks = [asyncio.create_task(pool.generate(request(f"{n}"))) for n in range(2)]
        await settle()
        await pool.load(published(2))
        made[0].gone.set()
        with pytest.raises(EngineLost):
            await tasks[0]
        await settle()
        assert (len(made), made[2].version, pool.version, pool.live) == (3, 2, 2, 2)
        made[1].answer.set()
        await tasks[1]


async def test_an_engine_that_keeps_dying_ends_the_pool():
    async with running(engines=1, restarts=1) as (pool, made, watch):
        await pool.load(published(1))
        made[0].gone.set()
        await settle()
        assert not watch.done()
        made[1].gone.set()
        with pytest.raises(ProcessFailed, match="e/engine-0 died 2 times"):
            await watch


async def test_version_is_the_oldest_of_the_engines_and_waiters_see_it():
    async with running() as (pool, made, _):
        await pool.load(published(1))
        waiting = asyncio.create_task(pool.wait_version(2))
        made[1].vanished.add(2)
        with pytest.raises(VersionGone):
            await pool.load(published(2))
        await settle()
        assert (pool.version, waiting.done()) == (1, False)
        await pool.load(published(3))
        await waiting
        assert pool.version == 3


async def test_a_restarted_engine_whose_version_is_gone_waits_for_a_newer_one(monkeypatch):
    async with running(engines=1) as (pool, made, _):
        await pool.load(published(1))
        with monkeypatch.context() as patch:
            patch.setattr(InMemory, "load_weights", gone)
            made[0].gone.set()
            await settle()
            assert (len(made), pool.live) == (2, 0)
        await pool.load(published(2))
        assert (pool.live, pool.version) == (1, 2)


def fails(monkeypatch, error, times):
    """The next `times` loads of any engine raise `error`; nobody pauses between tries."""
    load, left = InMemory.load_weights, [error] * times

    async def failing(self, version, keys, deadline_s):
        if left:
            raise left.pop()
        return await load(self, version, keys, deadline_s)

    monkeypatch.setattr(InMemory, "load_weights", failing)
    monkeypatch.setattr(replicas, "RETRY_S", 0.0)


@pytest.mark.parametrize(
    "error, times",
    [
        (ReadTimeout("slow"), 2),
        (WeightsIncomplete("dropped"), 2),
        (DeadlineExceeded("a long step"), 2),
        (PeerLost("trainer"), 5),
    ],
)
async def test_a_restarted_engine_tries_again_to_load(monkeypatch, error, times):
    async with running(engines=1) as (pool, made, _):
        await pool.load(published(1))
        fails(monkeypatch, error, times)
        made[0].gone.set()
        await settle()
        assert (len(made), pool.live) == (2, 1)
        made[1].answer.set()
        assert (await pool.generate(request("a"))).versions == [1]


async def test_a_restarted_engine_that_cannot_load_ends_the_pool(monkeypatch):
    async with running(engines=1) as (pool, made, watch):
        await pool.load(published(1))
        fails(monkeypatch, ReadTimeout("too slow"), 3)
        made[0].gone.set()
        with pytest.raises(ProcessFailed, match="failed 3 times to load version 1: too slow"):
            await watch


async def gone(self, version, keys, deadline_s):
    raise VersionGone(f"version {version}")


async def test_versions_of_a_restored_trainer_are_loaded_although_they_are_older():
    async with running(engines=1) as (pool, made, _):
        await pool.load(published(5, number=1))
        await pool.load(published(3, number=2))
        assert (pool.version, made[0].version) == (3, 3)
        await pool.load(published(5, number=1))
        assert pool.version == 3


async def test_an_engine_that_refuses_to_generate_gets_no_requests(monkeypatch):
    async with running(engines=1) as (pool, made, _):
        await pool.load(published(1))
        with monkeypatch.context() as patch:
            patch.setattr(InMemory, "load_weights", incomplete)
            with pytest.raises(WeightsIncomplete):
                await pool.load(published(2))
        waiting = asyncio.create_task(pool.generate(request("a")))
        await settle()
        assert (pool.live, made[0].served) == (0, [])
        await pool.load(published(2))
        made[0].answer.set()
        assert (await waiting).versions == [2]


async def incomplete(self, version, keys, deadline_s):
    raise WeightsIncomplete(f"version {version}")
