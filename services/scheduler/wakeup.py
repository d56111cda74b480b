"""A condition that several callers wait for, each with its time limit."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")
# Longest wait within one call of a client.
CALL_WAIT_S = 20.0


class Wakeup:
    """Callers wait until they are notified: all of them, the first of them, or one by its name."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._by_name: dict[str, asyncio.Future[None]] = {}
        self._closed = False

    def notify(self) -> None:
        """Wakes all waiting calls."""
        while self._waiting:
            self.notify_one()

    def notify_one(self) -> None:
        """Wakes the caller that has waited longest, which notifies the next if it leaves something."""
        while self._waiting:
            future, _ = self._waiting.popitem(last=False)
            if _wake(future):
                return

    def notify_name(self, name: str) -> None:
        """Wakes the one who waits under this name; of several the last."""
        if (future := self._by_name.get(name)) is not None:
            self._waiting.pop(future, None)
            _wake(future)

    def close(self) -> None:
        """Ends all waits, now and later."""
        self._closed = True
        self.notify()

    async def wait(self, timeout_s: float, name: str = "") -> None:
        """Returns when notified, or after timeout_s."""
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
        self, attempt: Callable[[float], Answer | None], wait_s: float, name: str = ""
    ) -> Answer | None:
        """Returns the answer of `attempt`, called at once and whenever notified, for wait_s at most.

        None: nothing until then, or the wakeup is closed.

        attempt: of monotonic time; what it raises ends the wait. name: of who waits, for `notify_name`.
        """
        until = time.monotonic() + wait_s
        while not self._closed:
            now = time.monotonic()
            answer = attempt(now)
            if answer is not None or now >= until:
                return answer
            await self.wait(until - now, name)
        return None


def _wake(future: asyncio.Future[None]) -> bool:
    """Wakes a waiter; returns whether it was still waiting."""
    if future.done():
        return False
    future.set_result(None)
    return True
