"""A wake-up call for everyone who waits."""

from __future__ import annotations

import asyncio


class Bell:
    """Wakes everyone who waits when it rings."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Until it rings, at most timeout_s."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            pass
