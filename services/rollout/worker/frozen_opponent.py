"""Plays frozen versions of the policy on engines of their own, one version at a time (version_holder.py).

Promise: episodes begin in the order in which they asked, so that none waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from earl.config.frozen_schedule import FrozenSchedule
from services.rollout.engines.contract.engine import EngineStats, GenerateRequest, Generation
from services.rollout.pool.pool import EnginePool
from services.rollout.worker.version_holder import VersionHolder


class FrozenOpponent:
    """The opponent of all episodes of a worker. pool: its engines; schedule: of the run."""

    def __init__(self, pool: EnginePool, schedule: FrozenSchedule) -> None:
        self._pool = pool
        self._holder = VersionHolder(pool, schedule.needed)
        self._started = asyncio.Event()

    @property
    def version(self) -> int:
        """The frozen version that the engines have; 0 if none, or another one of that number."""
        return self._holder.version

    async def run(self) -> None:
        """Starts the engines, and returns when they are stopped. Raises as EnginePool.start and run."""
        await self._pool.start()
        self._started.set()
        await self._pool.run()

    def offer(self, version: int) -> None:
        """Notes that this version of the policy was published."""
        self._holder.offer(version)

    @asynccontextmanager
    async def playing(self, version: int) -> AsyncIterator[None]:
        """The engines have this frozen version until the block ends. Raises as VersionHolder.playing."""
        await self._started.wait()
        async with self._holder.playing(version):
            yield

    async def generate(self, request: GenerateRequest) -> Generation:
        """One turn of an episode that plays. Raises what EnginePool.generate raises."""
        return await self._pool.generate(request)

    async def release(self, session: str) -> None:
        await self._pool.release(session)

    async def stats(self) -> list[EngineStats | None]:
        """Stats of each engine, in order; None for one that is not running or does not answer."""
        stats = await self._pool.stats()
        # Nobody asks when they were busy.
        self._pool.counters.take_busy()
        return stats

    async def stop(self) -> None:
        """Ends a load that runs, and the engines."""
        await self._holder.stop()
        await self._pool.stop()
