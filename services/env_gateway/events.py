"""Tells the bus that an environment went into quarantine. Without a bus the gateway works all the same."""

from __future__ import annotations

import asyncio
import logging

from earl.errors import EarlError
from earl.v1 import events_pb2

log = logging.getLogger(__name__)

BACKLOG = 1_000
CONNECT_PAUSE_S = 2.0


class QuarantineEvents:
    """Publishes EnvironmentQuarantined. `announce` never waits; past a backlog events are dropped."""

    def __init__(self, redis_url: str, run: str, source: str) -> None:
        self._redis_url = redis_url
        self._run = run
        self._source = source
        self._queue: asyncio.Queue[events_pb2.Event] = asyncio.Queue(BACKLOG)
        self.dropped = 0

    def announce(self, environment: str, host: str, reason: str) -> None:
        """Queue the event."""
        fact = events_pb2.EnvironmentQuarantined(environment=environment, host=host, reason=reason)
        try:
            self._queue.put_nowait(events_pb2.Event(source=self._source, environment_quarantined=fact))
        except asyncio.QueueFull:
            self.dropped += 1
            log.warning("%d events dropped: the bus does not take them", self.dropped)

    async def run(self) -> None:
        """Publish until cancelled; connects with the first event, again after a failure."""
        from earl.bus import Bus

        while True:
            event = await self._queue.get()
            try:
                bus = await Bus.connect(self._redis_url, self._run)
                try:
                    while True:
                        await bus.publish(event)
                        event = await self._queue.get()
                finally:
                    await bus.close()
            except EarlError as error:
                log.warning("event not published: %s", error)
                self.announce_again(event)
                await asyncio.sleep(CONNECT_PAUSE_S)

    def announce_again(self, event: events_pb2.Event) -> None:
        """Put back what could not be published."""
        if not self._queue.full():
            self._queue.put_nowait(event)
