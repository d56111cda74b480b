"""Descriptors in Redis: who holds which bytes, as long as the owner renews its lease.

A descriptor is one string key with a time to live. Every call takes a batch and is one round trip.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from earl.dispatch.describe.descriptor import Descriptor, SequenceRecords
from earl.dispatch.registry import codec
from earl.errors import BusUnavailable, DescriptorMissing, VersionGone
from earl.waiting import cancellable

WEIGHTS_PREFIX = "weights/"
# The field of an owner's hash that holds the head instead of a sequence.
_HEAD = ""
_SECRET_BYTES = 32
# Calls in progress at once: each holds a connection of the client's pool.
_MAX_CALLS = 16


def frozen_key(version: int) -> str:
    """The key of a version that is kept because tickets name it."""
    return f"{WEIGHTS_PREFIX}{version}/frozen"


class Registry:
    """prefix: the run's key prefix, for example "{earl:<run>}:". lease_s: time to live of a descriptor."""

    def __init__(self, redis: Redis, prefix: str, lease_s: float) -> None:
        self._redis = redis
        self._prefix = prefix
        self.lease_s = lease_s
        self._calls = asyncio.Semaphore(_MAX_CALLS)

    async def publish_encoded(self, descriptors: Mapping[str, bytes]) -> None:
        """Sets these descriptors, encoded, by key, each with a fresh lease. Raises BusUnavailable."""
        pipeline = self._redis.pipeline(transaction=False)
        for key, data in descriptors.items():
            pipeline.set(self._key(key), data, px=self._lease_ms)
        await self._call(pipeline.execute)

    async def get(self, keys: Sequence[str]) -> list[Descriptor]:
        """The descriptors under these keys, in order. Raises DescriptorMissing, for weights VersionGone."""
        if not keys:
            return []
        values = await self._call(lambda: self._redis.mget([self._key(key) for key in keys]))
        return _decoded(keys, values)

    async def fetch(
        self, keys: Sequence[str], sequences: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, Descriptor], dict[str, SequenceRecords]]:
        """The descriptors under these keys, and of each owner's key the records of these sequences.

        One round trip. Raises DescriptorMissing, for weights VersionGone, LayoutError, BusUnavailable.
        """
        if not sequences:
            return dict(zip(keys, await self.get(keys), strict=True)), {}
        pipeline = self._redis.pipeline(transaction=False)
        if keys:
            pipeline.mget([self._key(key) for key in keys])
        for owner, names in sequences.items():
            pipeline.hmget(self._key(owner), [_HEAD, *names])
        answers = await self._call(pipeline.execute)
        plain = _decoded(keys, answers.pop(0)) if keys else []
        records: dict[str, SequenceRecords] = {}
        for (owner, names), (head, *rows) in zip(sequences.items(), answers, strict=True):
            _refuse_missing(
                [f"{owner}#{name}" for name, row in zip(names, rows, strict=True) if row is None or not head]
            )
            records[owner] = codec.decode_sequences(head, rows)
        return dict(zip(keys, plain, strict=True)), records

    async def publish_records(self, owner: str, head: bytes, records: Mapping[str, bytes]) -> int:
        """Adds these sequences to an owner's; returns how many it then has. Raises BusUnavailable."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hset(self._key(owner), mapping={_HEAD: head, **records})
        pipeline.hlen(self._key(owner))
        pipeline.pexpire(self._key(owner), self._lease_ms)
        return (await self._call(pipeline.execute))[1] - 1

    async def renew_records(self, owner: str) -> int:
        """Extends the lease of an owner's sequences; returns how many are known. Raises BusUnavailable."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.pexpire(self._key(owner), self._lease_ms)
        pipeline.hlen(self._key(owner))
        return (await self._call(pipeline.execute))[1] - 1

    async def remove_records(self, owner: str, sequences: Collection[str]) -> None:
        """Removes these sequences of an owner; missing ones are ignored. Raises BusUnavailable."""
        if sequences:
            await self._call(lambda: self._redis.hdel(self._key(owner), *sequences))

    async def remove(self, keys: Iterable[str]) -> None:
        """Removes the descriptors under these keys; missing ones are ignored. Raises BusUnavailable."""
        names = [self._key(key) for key in keys]
        if names:
            await self._call(lambda: self._redis.unlink(*names))

    async def renew(self, keys: Sequence[str]) -> list[str]:
        """Extends the leases of all; returns the keys that had lapsed and must be published again."""
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
        try:
            with cancellable():
                async with self._calls:
                    return await call()
        except (RedisError, OSError) as error:
            raise BusUnavailable(
                f"the descriptor registry failed: {error}", "check the Redis server"
            ) from error


def _decoded(keys: Sequence[str], values: Sequence[bytes | None]) -> list[Descriptor]:
    _refuse_missing([key for key, data in zip(keys, values, strict=True) if data is None])
    return [codec.decode(data) for data in values if data is not None]


def _refuse_missing(missing: Sequence[str]) -> None:
    if not missing:
        return
    some = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    if missing[0].startswith(WEIGHTS_PREFIX):
        raise VersionGone(f"{some} is not published any more", "take the newer version")
    raise DescriptorMissing(
        f"no descriptor under {some}", "it was never published, was removed, or its owner stopped renewing it"
    )
