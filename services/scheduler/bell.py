"""A wake-up call for those who wait."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


class Bell:
    """Wakes those who wait when it rings."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._closed = False

    def ring(self) -> None:
        """Wakes all."""
        while self._waiting:
            self.ring_one()

    def ring_one(self) -> None:
        """Wakes whoever has waited longest; that one rings on if it leaves something for others."""
        while self._waiting:
            future, _ = self._waiting.popitem(last=False)
            if _wake(future):
                return

    def close(self) -> None:
        """Nobody waits any more, now or later."""
        self._closed = True
        self.ring()

    async def wait(self, timeout_s: float) -> None:
        """Until it rings, at most timeout_s."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting[future] = None
        limit = loop.call_later(timeout_s, _wake, future)
        try:
            await future
        finally:
            limit.cancel()
            self._waiting.pop(future, None)

    async def first(self, look: Callable[[float], Found | None], wait_s: float) -> Found | None:
        """What `look` finds; asked at once and whenever it rings, for wait_s at most. None: nothing, or it is
        closed.

        look: of monotonic time; what it raises ends the wait.
        """
        until = time.monotonic() + wait_s
        while not self._closed:
            now = time.monotonic()
            found = look(now)
            if found is not None or now >= until:
                return found
            await self.wait(until - now)
        return None


def _wake(future: asyncio.Future[None]) -> bool:
    """Whether there was somebody to wake."""
    if future.done():
        return False
    future.set_result(None)
    return True
