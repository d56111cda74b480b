"""The follower over a pool that fails as told: what counts as this worker's failure."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from earl.bus.reader_leases import ReaderLeases
from earl.errors import DeadlineExceeded, EngineError, PeerLost, ReadTimeout
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.worker import weight_follower
from services.rollout.worker.weight_follower import ATTEMPTS, WeightFollower


class Pool:
    """Raises `errors` one by one, then loads."""

    def __init__(self, errors):
        self.errors = errors
        self.loaded = asyncio.Queue()

    async def load(self, publication):
        if self.errors:
            raise self.errors.pop(0)
        self.loaded.put_nowait(publication.version)


@pytest.fixture
def follower(monkeypatch):
    monkeypatch.setattr(weight_follower, "RETRY_S", 0.0)
    redis = AsyncMock(time=AsyncMock(return_value=(1, 0)))
    bus: Any = SimpleNamespace(url="", redis=redis, key=lambda *parts: ":".join(map(str, parts)))
    return lambda pool: WeightFollower(pool, ReaderLeases(bus, "rollout-0"), BusySpans(), lease_s=1.0)


async def test_a_trainer_that_is_gone_is_waited_for(follower):
    pool = Pool([PeerLost("trainer-0")] * (2 * ATTEMPTS))
    it = follower(pool)
    it.offer(7, ["k"])
    task = asyncio.create_task(it.run())
    async with asyncio.timeout(10):
        assert await pool.loaded.get() == 7
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_engine_that_answers_late_once_is_asked_again(follower):
    pool = Pool([DeadlineExceeded("a long step"), EngineError("its descriptor")])
    it = follower(pool)
    it.offer(7, ["k"])
    task = asyncio.create_task(it.run())
    async with asyncio.timeout(10):
        assert await pool.loaded.get() == 7
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_loads_that_keep_failing_end_the_worker(follower):
    it = follower(Pool([ReadTimeout("slow"), PeerLost("trainer-0")] * ATTEMPTS))
    it.offer(7, ["k"])
    async with asyncio.timeout(10):
        with pytest.raises(ReadTimeout, match="slow"):
            await it.run()


def test_a_version_that_is_not_newer_is_a_roll_back(follower):
    it = follower(Pool([]))
    assert [it.offer(version, ["k"]) for version in (5, 6, 4, 4, 5)] == [False, False, True, True, False]
