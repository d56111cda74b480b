"""Policy versions on their way into the engines.

    WeightsPublished ──► offer ──► newest only ──► take reader's lease ─► pool.load ─► give it back
                                       ▲                                     │
                                       └────────── VersionGone ◄─────────────┘

Promise: versions only grow; however fast they are published, one load runs at a time and always of
the newest one known; the trainer's slot is held by a lease that ends by itself if this worker dies.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from earl.bus import Bus, redis_errors
from earl.errors import DataPlaneError, VersionGone
from services.rollout.pool import EnginePool
from services.rollout.telemetry import BusySpans

log = logging.getLogger(__name__)

# A load that fails for another reason than VersionGone is tried again this often in a row.
ATTEMPTS = 3
RETRY_S = 0.5


class WeightFollower:
    """Brings the newest published version into the pool. reader: this worker's name.

    lease_s: how long the trainer's slot is held for one load at most.
    """

    def __init__(self, bus: Bus, pool: EnginePool, reader: str, spans: BusySpans, *, lease_s: float) -> None:
        self._bus = bus
        self._pool = pool
        self._reader = reader
        self._spans = spans
        self._lease_s = lease_s
        self._newest: tuple[int, tuple[str, ...]] = (0, ())
        self._offered = asyncio.Event()

    def offer(self, version: int, keys: Sequence[str]) -> None:
        """A version exists; ignored unless it is newer than what is known."""
        if version > self._newest[0]:
            self._newest = version, tuple(keys)
            self._offered.set()

    async def run(self) -> None:
        """Loads what is offered, for ever. Raises DataPlaneError when loading failed ATTEMPTS times."""
        failures = 0
        while True:
            await self._offered.wait()
            self._offered.clear()
            version, keys = self._newest
            try:
                await self._load(version, keys)
                failures = 0
            except VersionGone as gone:
                # Its slot was reused, so a newer version was published: that event is on its way.
                log.info("version %d is gone before it was read: %s", version, gone.message)
            except DataPlaneError as error:
                failures += 1
                if failures >= ATTEMPTS:
                    raise
                log.warning("loading version %d failed, trying again: %s", version, error)
                await asyncio.sleep(RETRY_S)
                self._offered.set()

    async def _load(self, version: int, keys: Sequence[str]) -> None:
        readers = self._bus.key("weights", version, "readers")
        started_ns = time.time_ns()
        with redis_errors(self._bus.url):
            seconds, _ = await self._bus.redis.time()  # type: ignore[misc]
            await self._bus.redis.hset(readers, self._reader, str(seconds + self._lease_s))  # type: ignore[misc]
        try:
            await self._pool.load(version, keys)
        finally:
            with redis_errors(self._bus.url):
                await self._bus.redis.hdel(readers, self._reader)  # type: ignore[misc]
            self._spans.add("load", started_ns, time.time_ns())
