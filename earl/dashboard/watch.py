"""Polls the run while somebody views the page, and only then."""

from __future__ import annotations

import asyncio
import logging
import time

from earl.cli.report.sections.history import RunHistory
from earl.cli.report.sections.trajectories import Trajectories
from earl.dashboard.feed import Feed
from earl.dashboard.live import Live
from earl.waiting import until_first

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
        self._refreshed_at = -FRESH_S
        self._refreshed = asyncio.Event()
        self._refreshing = asyncio.Lock()
        self._begun = False

    async def run(self) -> None:
        """Watches the run until cancelled."""
        while True:
            await self._feed.watched.wait()
            await self.refresh()
            await asyncio.sleep(PERIOD_S)

    async def refresh(self) -> None:
        """Reads the run's files and asks its services, once."""
        async with self._refreshing:
            sections = await asyncio.to_thread(self._history.update)
            kept = await asyncio.to_thread(self._trajectories.update, self._history.newest)
            sections |= await self._live.sections(self._history.last)
            for name, value in {**sections, "trajectories": kept}.items():
                self._feed.put(name, value)
            self._begun = True
        self._refreshed_at = time.monotonic()
        self._refreshed.set()

    async def begun(self) -> None:
        """Returns once the run's files were read for the first time."""
        if not self._begun:
            await self.refresh()

    async def fresh(self) -> None:
        """Returns once what the feed holds is no older than FRESH_S, or after FIRST_S."""
        if time.monotonic() - self._refreshed_at <= FRESH_S:
            return
        self._refreshed.clear()
        (refreshed,) = await until_first(self._refreshed.wait(), timeout_s=FIRST_S)
        if not refreshed:
            log.warning("reading the state of the run takes longer than %g s", FIRST_S)
