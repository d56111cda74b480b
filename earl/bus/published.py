"""Finds the last published weights on the bus, for those that begin to follow it."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from earl.bus.connection import redis_errors
from earl.bus.streams import FIELD, Bus
from earl.v1 import events_pb2

# The stream is searched backwards in chunks of this many events, and not further than MOST.
CHUNK = 1000
MOST = 50_000


async def last_published(bus: Bus, until: str) -> tuple[int, tuple[str, ...]] | None:
    """(version, registry keys) of the last WeightsPublished up to the stream id `until`, if it is kept.

    The scheduler's answer to Join may be older: it learns of publications from the bus, too.
    """
    position, searched = until, 0
    while searched < MOST:
        with redis_errors(bus.url):
            entries: Any = await bus.redis.xrevrange(bus.stream, max=position, count=CHUNK)
        for _, fields in entries:
            try:
                event = events_pb2.Event.FromString(fields[FIELD])
            except (KeyError, DecodeError):
                continue
            if event.HasField("weights_published"):
                published = event.weights_published
                return published.version, tuple(published.descriptor_keys)
        if len(entries) < CHUNK:
            return None
        searched += CHUNK
        position = f"({entries[-1][0].decode()}"
    return None
