"""Tells the bus that an environment went into quarantine. Without a bus the gateway works too."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from earl.errors import EarlError
from services.env_gateway import codec

log = logging.getLogger(__name__)

BACKLOG = 1_000
CONNECT_PAUSE_S = 2.0


class QuarantineEvents:
    """Publishes EnvironmentQuarantined. `announce` never waits; past a backlog events are dropped."""

    def __init__(self, redis_url: str, run: str, source: str) -> None:
        self._redis_url = redis_url
        self._run = run
        self._source = source
        self._queue: asyncio.Queue[Any] = asyncio.Queue(BACKLOG)
        self.dropped = 0

    def announce(self, environment: str, host: str, reason: str) -> None:
        """Queues the event."""
        try:
            self._queue.put_nowait(codec.encode_quarantine(self._source, environment, host, reason))
        except asyncio.QueueFull:
            self.dropped += 1
            log.warning("%d events dropped: the bus does not take them", self.dropped)

    async def run(self) -> None:
        """Publishes until cancelled; connects with the first event, again after a failure."""
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

    def announce_again(self, event: Any) -> None:
        """Puts back what could not be published."""
        if not self._queue.full():
            self._queue.put_nowait(event)
