"""Policy versions on their way into the engines.

    WeightsPublished ──► offer ──► last one only ──► take reader's lease ─► pool.load ─► give it back
                                        ▲                                      │
                                        └─────────── VersionGone ◄─────────────┘

Promise: what was published last is what counts, whatever its number (a trainer restored from a
checkpoint publishes older versions anew); one load runs at a time, of the last publication known;
the trainer's slot is held by a lease that ends by itself if this worker dies. A trainer that is gone
is waited for: the run, not this worker, decides how long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from earl.bus import Bus, redis_errors
from earl.errors import DataPlaneError, DeadlineExceeded, EngineError, PeerLost, VersionGone
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.pool.pool import EnginePool
from services.rollout.pool.replicas import ATTEMPTS, NOTHING, RETRY_S, Publication

log = logging.getLogger(__name__)


class WeightFollower:
    """Brings what was published last into the pool. reader: this worker's name.

    lease_s: how long the trainer's slot is held for one load at most.
    """

    def __init__(self, bus: Bus, pool: EnginePool, reader: str, spans: BusySpans, *, lease_s: float) -> None:
        self._bus = bus
        self._pool = pool
        self._reader = reader
        self._spans = spans
        self._lease_s = lease_s
        self._last = NOTHING
        self._offered = asyncio.Event()

    def offer(self, version: int, keys: Sequence[str]) -> None:
        """A version was published after all that were offered before."""
        self._last = Publication(self._last.number + 1, version, tuple(keys))
        self._offered.set()

    async def run(self) -> None:
        """Loads what is offered, for ever. Raises why loading failed ATTEMPTS times in a row."""
        failures = 0
        while True:
            await self._offered.wait()
            self._offered.clear()
            last = self._last
            try:
                await self._load(last)
                failures = 0
            except VersionGone as gone:
                # Its slot was reused, so another version was published: that event is on its way.
                log.info("version %d is gone before it was read: %s", last.version, gone.message)
            except PeerLost as error:
                log.warning("version %d cannot be read, its trainer is gone: %s", last.version, error)
                await asyncio.sleep(RETRY_S)
                self._offered.set()
            except (DataPlaneError, EngineError, DeadlineExceeded) as error:
                failures += 1
                if failures >= ATTEMPTS:
                    raise
                log.warning("loading version %d failed, trying again: %s", last.version, error)
                await asyncio.sleep(RETRY_S)
                self._offered.set()

    async def _load(self, publication: Publication) -> None:
        started_ns = time.time_ns()
        try:
            async with self.reading(publication, self._lease_s):
                await self._pool.load(publication)
        finally:
            self._spans.add("load", started_ns, time.time_ns())

    @asynccontextmanager
    async def reading(self, publication: Publication, lease_s: float) -> AsyncIterator[None]:
        """The trainer leaves what it published where it is, for lease_s at most. Raises BusUnavailable."""
        readers = self._bus.key("weights", publication.version, "readers")
        with redis_errors(self._bus.url):
            seconds, _ = await self._bus.redis.time()  # type: ignore[misc]
            await self._bus.redis.hset(readers, self._reader, str(seconds + lease_s))  # type: ignore[misc]
        try:
            yield
        finally:
            with redis_errors(self._bus.url):
                await self._bus.redis.hdel(readers, self._reader)  # type: ignore[misc]
