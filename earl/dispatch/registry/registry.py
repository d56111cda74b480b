"""Descriptors in Redis: who holds which bytes, as long as the owner renews its lease.

A descriptor is one string key with a time to live. Every call takes a batch and is one round trip.
Before each descriptor stands the mark of its holder, an owner and one of its lives: while the lease of one
owner lives, no other owner can publish under that key. A later life of the same owner takes its keys over.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import xxhash
from redis.asyncio import Redis
from redis.exceptions import RedisError

from earl.dispatch.describe.descriptor import Descriptor, SequenceRecords
from earl.dispatch.describe.regions import ArenaRef
from earl.dispatch.registry import codec, scripts
from earl.errors import DescriptorMissing, KeyTaken, LayoutError, RegistryUnavailable, VersionGone
from earl.waiting import cancellable

WEIGHTS_PREFIX = "weights/"
# The field of an owner's hash that holds the head instead of a sequence.
_HEAD = ""
_SECRET_BYTES = 32
# Calls in progress at once: each holds a connection of the client's pool.
_MAX_CALLS = 16
MARK_BYTES = scripts.MARK_BYTES
# The mark of descriptors that no owner holds.
NOBODY = bytes(MARK_BYTES)
_SCANNED_AT_ONCE = 1000
_POLL_S = 0.005
_LONGEST_POLL_S = 0.1


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

    async def publish_encoded(
        self, descriptors: Mapping[str, bytes], mark: bytes = NOBODY, *, replace: bool = False
    ) -> None:
        """Sets these descriptors, encoded, by key, for the owner of this mark, each with a fresh lease.

        replace: whoever holds them; else only what this owner or an earlier life of it holds.
        Raises KeyTaken, having set none, where another owner's lease lives; BusUnavailable.
        """
        keys = list(descriptors)
        values = [mark + descriptors[key] for key in keys]
        taken = await self._script(scripts.PUBLISH, keys, mark, self._lease_ms, int(replace), *values)
        _refuse_taken([keys[i] for i in taken])

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
            records[owner] = codec.decode_sequences(owner, head[MARK_BYTES:], names, rows)
        return dict(zip(keys, plain, strict=True)), records

    async def publish_records(
        self, owner: str, mark: bytes, head: bytes, records: Mapping[str, bytes]
    ) -> int:
        """Adds these sequences to those under an owner's key; returns how many there are then.

        mark: the owner's. Raises KeyTaken where the key is another owner's, BusUnavailable.
        """
        fields = [part for pair in records.items() for part in pair]
        held = await self._script(scripts.PUBLISH_RECORDS, [owner], mark, self._lease_ms, head, *fields)
        _refuse_taken([owner] if held < 0 else [])
        return held - 1

    async def renew_records(self, owner: str, mark: bytes) -> int:
        """Extends the lease of an owner's sequences; returns how many are known. Raises BusUnavailable."""
        return await self._script(scripts.RENEW_RECORDS, [owner], mark, self._lease_ms) - 1

    async def remove_records(self, owner: str, mark: bytes, sequences: Collection[str]) -> None:
        """Removes these sequences of an owner; missing ones are ignored. Raises BusUnavailable."""
        if sequences:
            await self._script(scripts.REMOVE_RECORDS, [owner], mark, *sequences)

    async def release_records(self, owner: str, mark: bytes) -> None:
        """Removes the key of an owner's sequences, if it is this owner's still. Raises BusUnavailable."""
        await self._script(scripts.RELEASE_RECORDS, [owner], mark)

    async def remove(self, keys: Iterable[str]) -> None:
        """Removes the descriptors under these keys, whoever holds them; missing ones are ignored.

        Raises BusUnavailable.
        """
        names = [self._key(key) for key in keys]
        if names:
            await self._call(lambda: self._redis.unlink(*names))

    async def release(self, keys: Iterable[str], mark: bytes) -> None:
        """Removes those of these descriptors that are still of this life of their owner."""
        names = list(keys)
        if names:
            await self._script(scripts.RELEASE, names, mark)

    async def renew_held(self, keys: Sequence[str], mark: bytes) -> tuple[list[str], list[str]]:
        """Extends the leases of what this life of an owner holds.

        Returns the keys that had lapsed, and those that others hold now.
        """
        if not keys:
            return [], []
        states = await self._script(scripts.RENEW, keys, mark, self._lease_ms)
        by_state = list(zip(keys, states, strict=True))
        return [key for key, state in by_state if not state], [key for key, state in by_state if state < 0]

    async def keys(self, prefix: str = "", limit: int = 10_000) -> list[str]:
        """The keys under which something is published, those with this prefix, sorted.

        Raises LayoutError where there are more than `limit`, BusUnavailable.
        """
        pattern = _literal(self._key(prefix)) + "*"
        start, listed = len(self._key("")), set[str]()
        cursor = 0
        while True:
            scan = partial(self._redis.scan, cursor, match=pattern, count=_SCANNED_AT_ONCE)
            cursor, names = await self._call(scan)
            listed.update(_text(name)[start:] for name in names)
            if len(listed) > limit:
                raise LayoutError(f"more than {limit} keys begin with {prefix!r}", "give a longer prefix")
            if not cursor:
                return sorted(listed)

    async def sequences(self, owner: str) -> dict[str, int]:
        """The sequences under an owner's key, by name, each with its rows.

        Raises DescriptorMissing, LayoutError, BusUnavailable.
        """
        fields = await self._call(lambda: self._redis.hgetall(self._key(owner)))
        records = {_text(name): record for name, record in fields.items()}
        head = records.pop(_HEAD, b"")
        _refuse_missing([] if head else [owner])
        if not records:
            return {}
        held = codec.decode_sequences(owner, head[MARK_BYTES:], list(records), list(records.values()))
        return dict(zip(records, held.rows.tolist(), strict=True))

    async def wait(self, keys: str | Sequence[str], deadline_s: float) -> None:
        """Returns once there is something under each of these keys.

        Raises DescriptorMissing, naming what is not there after deadline_s; BusUnavailable.
        """
        missing = [keys] if isinstance(keys, str) else list(keys)
        poll_s = _POLL_S
        try:
            async with asyncio.timeout(deadline_s):
                while missing := await self._missing(missing):
                    await asyncio.sleep(poll_s)
                    poll_s = min(2 * poll_s, _LONGEST_POLL_S)
        except TimeoutError:
            raise DescriptorMissing(
                f"nothing was published under {_some(missing)} within {deadline_s:g} s",
                "does its owner run, with the same prefix? Registry.keys lists what there is",
            ) from None

    async def _missing(self, keys: Sequence[str]) -> list[str]:
        if not keys:
            return []
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.exists(self._key(key))
        return [key for key, there in zip(keys, await self._call(pipeline.execute), strict=True) if not there]

    async def renew(self, keys: Sequence[str]) -> list[str]:
        """Extends the leases of all, whoever holds them; returns the keys under which there is nothing."""
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

    async def _script(self, script: str, keys: Sequence[str], *arguments: Any) -> Any:
        names = [self._key(key) for key in keys]
        return await self._call(lambda: self._redis.eval(script, len(names), *names, *arguments))

    def _key(self, key: str) -> str:
        return f"{self._prefix}descriptor:{key}"

    async def _call(self, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            with cancellable():
                async with self._calls:
                    return await call()
        except (RedisError, OSError) as error:
            raise RegistryUnavailable(
                f"the descriptor registry failed: {error}", "check the Redis server"
            ) from error


def holder_mark(arena: ArenaRef) -> bytes:
    """Says whose a descriptor is, in front of it: the owner by its name, and its life by its arena."""
    return xxhash.xxh3_64_digest(arena.owner.encode()) + arena.nonce.to_bytes(8, "little")


def _refuse_taken(keys: Sequence[str]) -> None:
    """Raises KeyTaken if there are such keys."""
    if keys:
        raise KeyTaken(
            f"{_some(keys)}: published by another owner, whose lease lives",
            "publish under another key, or wait until that owner has ended",
        )


def _decoded(keys: Sequence[str], values: Sequence[bytes | None]) -> list[Descriptor]:
    _refuse_missing([key for key, data in zip(keys, values, strict=True) if data is None])
    descriptors = [codec.decode(data[MARK_BYTES:]) for data in values if data is not None]
    for key, descriptor in zip(keys, descriptors, strict=True):
        if descriptor.key != key:
            raise LayoutError(f"under {key} is the descriptor of {descriptor.key}", "publish it again")
    return descriptors


def _refuse_missing(missing: Sequence[str]) -> None:
    if not missing:
        return
    if missing[0].startswith(WEIGHTS_PREFIX):
        raise VersionGone(f"{_some(missing)} is not published any more", "take the newer version")
    raise DescriptorMissing(
        f"no descriptor under {_some(missing)}",
        "it was never published, was removed, or its owner stopped renewing it",
    )


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")


def _literal(text: str) -> str:
    """Text as a pattern of Redis that it alone matches."""
    return re.sub(r"([\\*?\[\]^])", r"\\\1", text)


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
