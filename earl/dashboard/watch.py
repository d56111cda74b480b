"""Looks at the run while anybody looks at the page, and never otherwise."""

from __future__ import annotations

import asyncio
import logging
import time

from earl.dashboard.feed import Feed
from earl.dashboard.history import RunHistory
from earl.dashboard.live import Live
from earl.dashboard.trajectories import Trajectories

log = logging.getLogger(__name__)

PERIOD_S = 1.0
# A look that is older than this is taken again before a new follower is shown it.
FRESH_S = 3.0
# Longest wait of a new follower for that.
FIRST_S = 5.0


class RunWatch:
    """Fills the feed from the run's files and services."""

    def __init__(self, history: RunHistory, trajectories: Trajectories, live: Live, feed: Feed) -> None:
        self._history = history
        self._trajectories = trajectories
        self._live = live
        self._feed = feed
        self._looked_at = -FRESH_S
        self._looked = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._feed.watched.wait()
            await self.look()
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Once, at everything."""
        sections = await asyncio.to_thread(self._history.update)
        kept = await asyncio.to_thread(self._trajectories.update, self._history.newest)
        sections |= await self._live.look(self._history.last)
        for name, value in {**sections, "trajectories": kept}.items():
            self._feed.put(name, value)
        self._looked_at = time.monotonic()
        self._looked.set()

    async def fresh(self) -> None:
        """Returns once what the feed holds is no older than FRESH_S, or after FIRST_S."""
        if time.monotonic() - self._looked_at <= FRESH_S:
            return
        self._looked.clear()
        try:
            async with asyncio.timeout(FIRST_S):
                await self._looked.wait()
        except TimeoutError:
            log.warning("a look at the run takes longer than %g s", FIRST_S)
