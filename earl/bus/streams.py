"""Protobuf events on two Redis Streams per run: one of trajectories that are ready, one of all other events.

There are as many trajectories as episodes. Subscribers that act on weights, batches and workers would spend
their time on skipping them, and each of a thousand workers would be sent all of them: hence two streams.

Promises: what `publish` returned from is in the stream; a subscriber group gets each event at
least once, until one of its consumers acknowledges it; a follower gets every event once, in order.
A server that cannot be reached is tried for the outage that the bus is made for, whatever is asked of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio
from google.protobuf.message import DecodeError
from redis.exceptions import ResponseError

from earl.bus.connection import CONNECT_S, open_redis, redis_errors
from earl.bus.exposure import exposure_text
from earl.v1.events_pb2 import Event

log = logging.getLogger(__name__)

FIELD = b"e"
# The kind of event with a separate stream.
TRAJECTORY = "trajectory_ready"
BLOCK_MS = 1000
READ_COUNT = 128
# How long a server that cannot be reached is tried, unless the run file says so (bus.outage_s).
OUTAGE_S = 10.0


@dataclass(slots=True)
class Delivery:
    """One event handed to one consumer of a group; acknowledge it after its effect."""

    event: Event
    id: str
    _bus: Bus = field(repr=False)
    _group: str = field(repr=False)

    async def ack(self) -> None:
        """Marks the event as done for the group; it is not redelivered. Raises BusUnavailable."""
        with redis_errors(self._bus.url):
            await self._bus.redis.xack(self._bus.stream, self._group, self.id)


class Bus:
    """One run's streams. All keys of a run share the hash tag `{earl:<run>}` (one cluster slot)."""

    def __init__(
        self, client: redis.asyncio.Redis, url: str, run: str, source: str, stream_events: int
    ) -> None:
        self.redis = client
        self.url = url
        self.run = run
        self.source = source
        self.prefix = f"{{earl:{run}}}:"
        self.stream = self.key("events")
        self.trajectories = self.key("trajectories")
        self.stream_events = stream_events

    @classmethod
    async def connect(
        cls,
        url: str,
        run: str,
        *,
        source: str = "",
        stream_events: int = 100_000,
        outage_s: float = OUTAGE_S,
    ) -> Bus:
        """A bus on the server at `url`, proven by a ping.

        source: name of this process, written into its events. stream_events: about how many events
        the stream keeps. outage_s: how long whatever is asked of the bus tries a server that cannot be
        reached, once it has answered.

        Raises BusUnavailable, naming the URL without its password, and ConfigError for a server on another
        machine that is reached without one.
        """
        if words := exposure_text(url):
            log.warning(words)
        probe = open_redis(url)
        try:
            with redis_errors(url):
                async with asyncio.timeout(CONNECT_S + 2.0):
                    await probe.ping()
        finally:
            await probe.aclose()
        return cls(
            open_redis(url, outage_s),
            url,
            run,
            source or f"{socket.gethostname()}:{os.getpid()}",
            stream_events,
        )

    def key(self, *parts: object) -> str:
        """The run's own key of these parts, for example key("ledger", 7) -> "{earl:run}:ledger:7"."""
        return self.prefix + ":".join(str(part) for part in parts)

    def encode(self, event: Event) -> bytes:
        """The event's bytes, with time_ns and source filled in where they are empty."""
        event.time_ns = event.time_ns or time.time_ns()
        event.source = event.source or self.source
        return event.SerializeToString()

    async def publish(self, event: Event) -> None:
        """Appends one event. Raises BusUnavailable."""
        data = self.encode(event)
        stream = self.trajectories if is_trajectory(event) else self.stream
        with redis_errors(self.url):
            await self.redis.xadd(stream, {FIELD: data}, maxlen=self.stream_events, approximate=True)

    async def last_id(self, *, trajectories: bool = False) -> str:
        """Stream id of the newest event ("0-0" if none): `follow(after=...)` continues from it."""
        stream = self.trajectories if trajectories else self.stream
        with redis_errors(self.url):
            newest = _entries([(stream, await self.redis.xrevrange(stream, count=1))])
        return newest[0][0] if newest else "0-0"

    async def follow(
        self, after: str = "$", *, trajectories: bool = False
    ) -> AsyncIterator[tuple[str, Event]]:
        """Every event after the stream id `after`, in order, as (id, event); waits for more forever.

        trajectories: the stream of trajectories that are ready; otherwise that of all other events.

        "$" means: from the first `anext` on; "0-0": from the oldest event kept. Raises
        BusUnavailable when the server stays away for longer than the bus's outage_s.
        """
        stream = self.trajectories if trajectories else self.stream
        position = await self.last_id(trajectories=trajectories) if after == "$" else after
        while True:
            with redis_errors(self.url):
                streams = await self.redis.xread({stream: position}, READ_COUNT, BLOCK_MS)
            for entry_id, fields in _entries(streams):
                position = entry_id
                event = _decode(fields)
                if event is not None:
                    yield entry_id, event

    async def subscribe(
        self,
        group: str,
        consumer: str,
        *,
        idle_s: float = 10.0,
        start: str = "0",
        kinds: Collection[str] = (),
    ) -> AsyncIterator[Delivery]:
        """Events but trajectories for one consumer of `group`, each to be acknowledged after its effect.

        A consumer that comes back under its name first gets what it had not acknowledged. What any
        consumer left unacknowledged for `idle_s` is taken over. A new group begins at `start`: "0"
        is the oldest event kept, "$" only what is new. kinds: names of the facts that have an effect
        here, such as "weights_published"; others are acknowledged at once. Empty: all. Raises
        BusUnavailable.
        """
        await self._create_group(group, start)
        resume: str | None = "0"
        claim_at = 0.0
        while True:
            with redis_errors(self.url):
                if resume is not None:
                    entries = await self._read_group(group, consumer, resume)
                    resume = entries[-1][0] if entries else None
                elif time.monotonic() >= claim_at:
                    entries = await self._claim(group, consumer, idle_s)
                    claim_at = time.monotonic() + (0.0 if entries else idle_s / 2)
                else:
                    entries = await self._read_group(group, consumer, ">")
            events = [(entry_id, _decode(fields)) for entry_id, fields in entries]
            # What is no event at all is acknowledged too: kept pending it would come back forever.
            unseen = [entry_id for entry_id, event in events if event is None or not _of_kinds(event, kinds)]
            if unseen:
                with redis_errors(self.url):
                    await self.redis.xack(self.stream, group, *unseen)
            for entry_id, event in events:
                if event is not None and _of_kinds(event, kinds):
                    yield Delivery(event, entry_id, self, group)

    async def close(self) -> None:
        """Closes the connections; calls in flight fail."""
        await self.redis.aclose()

    async def _create_group(self, group: str, start: str) -> None:
        with redis_errors(self.url):
            try:
                await self.redis.xgroup_create(self.stream, group, id=start, mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    async def _read_group(self, group: str, consumer: str, after: str) -> list[tuple[str, dict]]:
        block = BLOCK_MS if after == ">" else None
        streams = await self.redis.xreadgroup(
            group, consumer, {self.stream: after}, count=READ_COUNT, block=block
        )
        return _entries(streams)

    async def _claim(self, group: str, consumer: str, idle_s: float) -> list[tuple[str, dict]]:
        answer = await self.redis.xautoclaim(
            self.stream, group, consumer, min_idle_time=int(idle_s * 1000), count=READ_COUNT
        )
        return [(entry_id.decode(), fields) for entry_id, fields in answer[1] if fields is not None]


def is_trajectory(event: Event) -> bool:
    """Returns whether an event belongs to the stream of trajectories."""
    return event.WhichOneof("fact") == TRAJECTORY


def _entries(streams: Any) -> list[tuple[str, dict]]:
    """[(id, fields)] of a read of one stream."""
    if not streams:
        return []
    pairs = streams.items() if isinstance(streams, dict) else streams
    return [
        (entry_id.decode(), fields)
        for _, entries in pairs
        for entry_id, fields in entries
        if fields is not None
    ]


def _of_kinds(event: Event, kinds: Collection[str]) -> bool:
    return not kinds or event.WhichOneof("fact") in kinds


def _decode(fields: dict) -> Event | None:
    """The event of an entry, None if its bytes are no event."""
    try:
        return Event.FromString(fields[FIELD])
    except (KeyError, DecodeError):
        return None
