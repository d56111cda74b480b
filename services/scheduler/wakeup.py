"""A wake-up call for those who wait."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


class Wakeup:
    """Wakes those who wait when it rings."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._by_name: dict[str, asyncio.Future[None]] = {}
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

    def ring_for(self, name: str) -> None:
        """Wakes the one who waits under this name; of several the last."""
        if (future := self._by_name.get(name)) is not None:
            self._waiting.pop(future, None)
            _wake(future)

    def close(self) -> None:
        """Nobody waits any more, now or later."""
        self._closed = True
        self.ring()

    async def wait(self, timeout_s: float, name: str = "") -> None:
        """Until it rings, at most timeout_s."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting[future] = None
        if name:
            self._by_name[name] = future
        limit = loop.call_later(timeout_s, _wake, future)
        try:
            await future
        finally:
            limit.cancel()
            self._waiting.pop(future, None)
            if self._by_name.get(name) is future:
                del self._by_name[name]

    async def first(
        self, look: Callable[[float], Answer | None], wait_s: float, name: str = ""
    ) -> Answer | None:
        """What `look` finds; asked at once and whenever it rings, for wait_s at most. None: nothing, or it is
        closed.

        look: of monotonic time; what it raises ends the wait. name: of who waits, for `ring_for`.
        """
        until = time.monotonic() + wait_s
        while not self._closed:
            now = time.monotonic()
            found = look(now)
            if found is not None or now >= until:
                return found
            await self.wait(until - now, name)
        return None


def _wake(future: asyncio.Future[None]) -> bool:
    """Whether there was somebody to wake."""
    if future.done():
        return False
    future.set_result(None)
    return True
