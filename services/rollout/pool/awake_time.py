"""Deadlines that stand still while engines sleep: of episodes and turns, which can do nothing meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from earl.errors import EarlError


class AwakeTime:
    """Bounds blocks by seconds of an event loop's time in which the engines are awake."""

    def __init__(self) -> None:
        self._timers: set[asyncio.Timeout] = set()
        # What each timer has left, while the time stands still.
        self._left_s: dict[asyncio.Timeout, float] | None = None

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Raises TimeoutError if the block takes longer, as asyncio.timeout does."""
        timer = asyncio.timeout(None)
        async with timer:
            self._timers.add(timer)
            self._set(timer, seconds)
            try:
                yield timer
            finally:
                self._timers.discard(timer)
                if self._left_s is not None:
                    self._left_s.pop(timer, None)

    @asynccontextmanager
    async def deadline(self, seconds: float, error: EarlError) -> AsyncIterator[None]:
        """Raises `error` if the block takes longer; the block's own errors are raised as they are."""
        timer = None
        try:
            async with self.timeout(seconds) as timer:
                yield
        except TimeoutError:
            if timer is None or not timer.expired():
                raise
            raise error from None

    def stop(self) -> None:
        """The engines sleep. Idempotent."""
        if self._left_s is None:
            now = asyncio.get_running_loop().time()
            self._left_s = {timer: (timer.when() or now) - now for timer in self._timers}
            for timer in self._timers:
                timer.reschedule(None)

    def go_on(self) -> None:
        """The engines are awake. Idempotent."""
        if self._left_s is not None:
            left_s, self._left_s = self._left_s, None
            for timer, seconds in left_s.items():
                self._set(timer, seconds)

    def _set(self, timer: asyncio.Timeout, seconds: float) -> None:
        if self._left_s is not None:
            self._left_s[timer] = seconds
        elif not timer.expired():
            timer.reschedule(asyncio.get_running_loop().time() + seconds)
