"""Leases of readers on published weights, in the registry's Redis: what trainers look at before they reuse a
slot.

A version has a hash `weights:<version>:readers`: reader -> end of its lease, in seconds of Redis's clock. A
reader acknowledges by deleting its field. What is here raises BusUnavailable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from earl.bus.connection import redis_errors
from earl.bus.streams import Bus
from earl.errors import BusUnavailable

log = logging.getLogger(__name__)

# How long a server that cannot be reached may delay who has read.
GIVE_BACK_S = 2.0


class ReaderLeases:
    """Keeps versions readable for `reader`, a worker's name, while they are read."""

    def __init__(self, bus: Bus, reader: str) -> None:
        self._bus = bus
        self._reader = reader

    @asynccontextmanager
    async def hold(self, version: int, lease_s: float) -> AsyncIterator[None]:
        """The trainer leaves the version where it is until the block ends, for lease_s at most."""
        readers = _key(self._bus, version)
        with redis_errors(self._bus.url):
            seconds, _ = await self._bus.redis.time()  # type: ignore[misc]
            await self._bus.redis.hset(readers, self._reader, str(seconds + lease_s))  # type: ignore[misc]
        try:
            yield
        finally:
            await self._give_back(readers)

    async def _give_back(self, readers: str) -> None:
        try:
            with redis_errors(self._bus.url):
                async with asyncio.timeout(GIVE_BACK_S):
                    await self._bus.redis.hdel(readers, self._reader)  # type: ignore[misc]
        except BusUnavailable as error:
            log.warning("a reader's lease was not given back and ends by itself: %s", error)


async def readers_of(bus: Bus, version: int) -> list[str]:
    """Readers whose lease on the version has not ended."""
    with redis_errors(bus.url):
        pipeline = bus.redis.pipeline(transaction=False)
        pipeline.time()
        pipeline.hgetall(_key(bus, version))
        (seconds, _), leases = await pipeline.execute()
    return [reader.decode() for reader, end in leases.items() if float(end) > seconds]


async def forget_readers(bus: Bus, version: int) -> None:
    """Nobody can read the version any more."""
    with redis_errors(bus.url):
        await bus.redis.delete(_key(bus, version))


def _key(bus: Bus, version: int) -> str:
    return bus.key("weights", version, "readers")
