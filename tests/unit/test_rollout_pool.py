"""The pool over engines that live in this process: routing, restarts, versions."""

import asyncio
from contextlib import asynccontextmanager

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
from services.rollout import pool as pool_module
from services.rollout.engines.base import Engine, EngineSpec, GenerateRequest, Generation, LoadReport
from services.rollout.pool import EnginePool, Publication


class InMemory(Engine):
    """Answers with its own name's last character when told to; dies when told to."""

    def __init__(self, spec):
        self.spec = spec
        self.version = 0
        self.gone = asyncio.Event()
        self.answer = asyncio.Event()
        self.served = []
        self.released = []
        self.vanished = set()

    async def start(self):
        pass

    async def stop(self):
        self.gone.set()

    async def wait_lost(self):
        await self.gone.wait()

    async def generate_all(self, request):
        self.served.append(request.request_id)
        waits = [asyncio.ensure_future(event.wait()) for event in (self.gone, self.answer)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self.gone.is_set():
            raise EngineLost(f"engine {self.spec.name} is gone")
        return Generation(
            request_id=request.request_id, ids=[1], logprobs=[0.0], versions=[self.version], finish="stop"
        )

    async def load(self, version, keys, deadline_s):
        if self.gone.is_set():
            raise EngineLost("gone")
        if version in self.vanished:
            raise VersionGone(f"version {version}")
        return LoadReport(version=version, size_bytes=0, read_s=0.0)

    async def commit(self, version):
        self.version = version
        return LoadReport(version=version, size_bytes=0, read_s=0.0)

    async def release(self, session):
        self.released.append(session)

    async def begin_update(self, version): ...
    async def abort(self, request_id): ...
    async def pause(self, keep=True): ...
    async def resume(self): ...
    async def offer_kv(self, name, known, deadline_s): ...

    async def take_kv(self, offer, deadline_s): ...

    async def withdraw_kv(self, name): ...
    async def stats(self): ...
    def generate(self, request): ...


@asynccontextmanager
async def running(engines=2, restarts=1):
    made = []

    def make(spec):
        made.append(InMemory(spec))
        return made[-1]

    specs = [EngineSpec(name=f"e{number}", model_dir="") for number in range(engines)]
    pool = EnginePool(specs, make, restarts=restarts, load_s=5.0)
    await pool.start()
    watch = asyncio.create_task(pool.run())
    try:
        yield pool, made, watch
    finally:
        await pool.stop()
        await asyncio.gather(watch, return_exceptions=True)


def request(name, session=""):
    return GenerateRequest(request_id=name, ids=[1], max_new_tokens=1, session=session or name)


def published(version, number=0):
    return Publication(number or version, version, ("k",))


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


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
        with pytest.raises(ProcessFailed, match="e0 died 2 times"):
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
            patch.setattr(InMemory, "load", gone)
            made[0].gone.set()
            await settle()
            assert (len(made), pool.live) == (2, 0)
        await pool.load(published(2))
        assert (pool.live, pool.version) == (1, 2)


def fails(monkeypatch, error, times):
    """The next `times` loads of any engine raise `error`; nobody pauses between tries."""
    load, left = InMemory.load, [error] * times

    async def failing(self, version, keys, deadline_s):
        if left:
            raise left.pop()
        return await load(self, version, keys, deadline_s)

    monkeypatch.setattr(InMemory, "load", failing)
    monkeypatch.setattr(pool_module, "RETRY_S", 0.0)


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
            patch.setattr(InMemory, "commit", incomplete)
            with pytest.raises(WeightsIncomplete):
                await pool.load(published(2))
        waiting = asyncio.create_task(pool.generate(request("a")))
        await settle()
        assert (pool.live, made[0].served) == (0, [])
        await pool.load(published(2))
        made[0].answer.set()
        assert (await waiting).versions == [2]


async def incomplete(self, version):
    raise WeightsIncomplete(f"version {version}")
