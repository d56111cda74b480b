"""Descriptors in Redis: who holds which bytes, as long as the owner renews its lease.

A descriptor is one string key with a time to live. Every call takes a batch and is one round trip.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from earl.dispatch import codec
from earl.dispatch.descriptor import Descriptor
from earl.errors import BusUnavailable, DescriptorMissing, VersionGone

WEIGHTS_PREFIX = "weights/"
_SECRET_BYTES = 32
# Calls under way at once: each holds a connection of the client's pool.
_MAX_CALLS = 16


class Registry:
    """prefix: the run's key prefix, for example "{earl:<run>}:". lease_s: time to live of a descriptor."""

    def __init__(self, redis: Redis, prefix: str, lease_s: float) -> None:
        self._redis = redis
        self._prefix = prefix
        self.lease_s = lease_s
        self._calls = asyncio.Semaphore(_MAX_CALLS)

    async def publish(self, descriptors: Sequence[Descriptor]) -> None:
        """Set them all, each with a fresh lease. Raises BusUnavailable."""
        if descriptors:
            await self.publish_encoded({d.key: codec.encode(d) for d in descriptors})

    async def publish_encoded(self, descriptors: Mapping[str, bytes]) -> None:
        """`publish` for descriptors that are bytes already."""
        pipeline = self._redis.pipeline(transaction=False)
        for key, data in descriptors.items():
            pipeline.set(self._key(key), data, px=self._lease_ms)
        await self._call(pipeline.execute)

    async def get(self, keys: Sequence[str]) -> list[Descriptor]:
        """The descriptors under these keys, in order. Raises DescriptorMissing, for weights VersionGone."""
        if not keys:
            return []
        found = await self._call(lambda: self._redis.mget([self._key(key) for key in keys]))
        missing = [key for key, data in zip(keys, found, strict=True) if data is None]
        if missing:
            if missing[0].startswith(WEIGHTS_PREFIX):
                raise VersionGone(f"{', '.join(missing)} is not published any more", "take the newer version")
            raise DescriptorMissing(
                f"no descriptor under {', '.join(missing)}",
                "it was never published, was removed, or its owner stopped renewing it",
            )
        return [codec.decode(data) for data in found]

    async def remove(self, keys: Iterable[str]) -> None:
        """Forget them; keys that are not there are ignored."""
        names = [self._key(key) for key in keys]
        if names:
            await self._call(lambda: self._redis.unlink(*names))

    async def renew(self, keys: Sequence[str]) -> list[str]:
        """Extend the leases of all; returns the keys that had lapsed and must be published again."""
        if not keys:
            return []
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.pexpire(self._key(key), self._lease_ms)
        alive = await self._call(pipeline.execute)
        return [key for key, renewed in zip(keys, alive, strict=True) if not renewed]

    async def secret(self) -> bytes:
        """The run's key for authenticating reads over a wire: drawn once, the same for every process."""
        pipeline = self._redis.pipeline(transaction=False)
        key = f"{self._prefix}data_plane:secret"
        pipeline.set(key, secrets.token_bytes(_SECRET_BYTES), nx=True)
        pipeline.get(key)
        return (await self._call(pipeline.execute))[1]

    @property
    def _lease_ms(self) -> int:
        return max(1, int(self.lease_s * 1000))

    def _key(self, key: str) -> str:
        return f"{self._prefix}descriptor:{key}"

    async def _call(self, call: Callable[[], Awaitable[Any]]) -> Any:
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        try:
            async with self._calls:
                answer = await call()
        except (RedisError, OSError) as error:
            raise BusUnavailable(
                f"the descriptor registry failed: {error}", "check the Redis server"
            ) from error
        if task is not None and task.cancelling() > cancels:
            # redis-py sends with asyncio.wait_for, which on Python 3.11 loses a cancellation (a
            # deadline, say) that arrives just as the send is done.
            raise asyncio.CancelledError
        return answer
