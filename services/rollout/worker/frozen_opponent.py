"""Plays frozen versions of the policy on engines of their own, one version at a time.

    playing(v) ──► one after another ──► episodes against another version have ended ──► load v ──► plays
                                                                                          ▲   │
                                                          PeerLost, VersionGone: again ───┴───┘

Promises: while an episode plays against a version, the engines have no other. Episodes begin in the order in
which they asked, so that none waits for ever. A version that a trainer made again, after it went back to an
older checkpoint, is loaded again. What the trainer no longer keeps is not waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from earl.config.frozen_schedule import FrozenSchedule
from earl.dispatch.registry.registry import frozen_key
from earl.errors import PeerLost, VersionGone
from services.rollout.engines.contract.engine import EngineStats, GenerateRequest, Generation
from services.rollout.pool.pool import EnginePool
from services.rollout.pool.replicas import RETRY_S, Publication

log = logging.getLogger(__name__)


class FrozenOpponent:
    """The opponent of all episodes of a worker. pool: its engines; schedule: of the run."""

    def __init__(self, pool: EnginePool, schedule: FrozenSchedule) -> None:
        self._pool = pool
        self._schedule = schedule
        # The frozen version that the engines have; 0 if none, or another one of that number.
        self.version = 0
        # What the trainer published last.
        self._published = 0
        self._turn = asyncio.Lock()
        self._players = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._loading: asyncio.Task[None] | None = None
        self._loads = 0
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Starts the engines, and returns when they are stopped. Raises as EnginePool.start and run."""
        await self._pool.start()
        self._started.set()
        await self._pool.run()

    def offer(self, version: int) -> None:
        """Notes that this version of the policy was published."""
        self._published = version
        if version < self.version:
            self.version = 0

    @asynccontextmanager
    async def playing(self, version: int) -> AsyncIterator[None]:
        """The engines have this frozen version until the block ends.

        Raises VersionGone for one that the trainer no longer keeps, and what EnginePool.load raises.
        """
        await self._started.wait()
        async with self._turn:
            if self.version != version:
                await self._idle.wait()
            if self.version != version or not self._pool.live:
                await self._load(version)
            self._players += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._players -= 1
            if not self._players:
                self._idle.set()

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

    async def _load(self, version: int) -> None:
        if self._loading is not None:
            await asyncio.wait([self._loading])  # of an episode that was cancelled
        self.version = 0
        # An episode that is cancelled leaves the engines whole for the next one.
        self._loading = asyncio.create_task(self._bring(version), name=f"load frozen version {version}")
        await asyncio.shield(self._loading)

    async def _bring(self, version: int) -> None:
        while True:
            self._loads += 1
            try:
                await self._pool.load(Publication(self._loads, version, (frozen_key(version),)))
                break
            except (PeerLost, VersionGone) as error:
                # A trainer that starts again publishes what it keeps, before anything else.
                if version not in self._schedule.needed(self._published):
                    raise
                log.warning("frozen version %d cannot be read yet: %s", version, error.message)
            await asyncio.sleep(RETRY_S)
        # Otherwise it was given up meanwhile, and so were those who asked for it.
        if version <= self._published:
            self.version = version

    async def stop(self) -> None:
        """Ends a load that runs, and the engines."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        await self._pool.stop()
