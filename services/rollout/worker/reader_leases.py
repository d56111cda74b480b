"""Leases of a reader on published weights, in the registry's Redis: what trainers look at before they reuse
a slot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from earl.bus import Bus, redis_errors
from services.rollout.pool.replicas import Publication


class ReaderLeases:
    """Keeps publications readable for `reader`, a worker's name, while they are read."""

    def __init__(self, bus: Bus, reader: str) -> None:
        self._bus = bus
        self._reader = reader

    @asynccontextmanager
    async def hold(self, publication: Publication, lease_s: float) -> AsyncIterator[None]:
        """The trainer leaves the publication where it is until the block ends, for lease_s at most.

        Raises BusUnavailable.
        """
        readers = self._bus.key("weights", publication.version, "readers")
        with redis_errors(self._bus.url):
            seconds, _ = await self._bus.redis.time()  # type: ignore[misc]
            await self._bus.redis.hset(readers, self._reader, str(seconds + lease_s))  # type: ignore[misc]
        try:
            yield
        finally:
            with redis_errors(self._bus.url):
                await self._bus.redis.hdel(readers, self._reader)  # type: ignore[misc]
