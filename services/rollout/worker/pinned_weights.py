"""Brings a worker's engines to the version that each episode is pinned to.

Tickets of a deterministic run with staleness, or with planned switches, are (RunConfig.pinned).

    ticket of v ──► playing(v) ──► published? ──► VersionHolder: the oldest version first ──► load v ──► plays
    WeightsPublished ──► offer ──► the version in use is still needed: engines that lack it get it again
                                └─ it is not: the newest is loaded, at its turn

Promises: while an episode runs, the engines have exactly its version, in the layout that the plan has for it
(planned_layouts.py), and begin no episode of a newer one while one of an older one waits. A worker that
starts anew reads older versions where the trainer keeps them. One that is kept no more is VersionGone: its
batches are trained, and no ticket that still counts asks for it. While episodes wait for their version, no
more are leased: another worker may have that version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from earl.config.frozen_schedule import PinnedSchedule
from earl.errors import (
    DataPlaneError,
    DeadlineExceeded,
    EngineError,
    PeerLost,
    RegistryUnavailable,
    VersionGone,
)
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.pool.pool import EnginePool
from services.rollout.pool.replicas import ATTEMPTS, RETRY_S, ChangeNotifier
from services.rollout.worker.planned_layouts import PlannedLayouts
from services.rollout.worker.version_holder import VersionHolder

log = logging.getLogger(__name__)


class PinnedWeights:
    """Loads the versions that episodes ask for into the pool. schedule: of the run. layouts: gives engines
    the layout of each version; None where all have the same."""

    def __init__(
        self,
        pool: EnginePool,
        schedule: PinnedSchedule,
        spans: BusySpans,
        layouts: PlannedLayouts | None = None,
    ) -> None:
        self._schedule = schedule
        arrange = layouts.bring if layouts is not None else None
        self._holder = VersionHolder(pool, schedule.needed, oldest_first=True, spans=spans, arrange=arrange)
        self._changes = ChangeNotifier()
        self._offered = asyncio.Event()
        # Episodes that have not begun.
        self._waiting = 0

    def offer(self, version: int, keys: Sequence[str]) -> bool:
        """Notes a publication, newer than all before; returns whether its version is not: a roll-back. keys:
        of no interest, for engines read every version where it is kept."""
        rolled_back = version <= self._holder.published
        self._holder.offer(version)
        self._changes.tell()
        self._offered.set()
        return rolled_back

    @asynccontextmanager
    async def playing(self, version: int) -> AsyncIterator[None]:
        """The engines have exactly this version until the block ends. Raises as VersionHolder.playing."""
        async with AsyncExitStack() as held:
            self._waiting += 1
            try:
                while self._holder.published < version:
                    await self._changes.wait()
                await held.enter_async_context(self._holder.playing(version))
            finally:
                self._waiting -= 1
                self._changes.tell()
            yield

    async def wait_begun(self) -> None:
        """Returns when every episode that asked for a version has begun."""
        while self._waiting:
            await self._changes.wait()

    async def run(self) -> None:
        """Follows what is offered until it is cancelled. Raises the error of the last of ATTEMPTS failures in
        a row."""
        failures = 0
        while True:
            await self._offered.wait()
            self._offered.clear()
            newest = self._holder.published
            try:
                await self._follow(newest)
                failures = 0
            except (VersionGone, PeerLost, RegistryUnavailable) as error:
                # Another one is published next, or a trainer that starts again publishes this one.
                log.info("version %d cannot be read now: %s", newest, error.message)
            except (DataPlaneError, EngineError, DeadlineExceeded) as error:
                failures += 1
                if failures >= ATTEMPTS:
                    raise
                log.warning("version %d was not loaded, trying again: %s", newest, error)
                await asyncio.sleep(RETRY_S)
                self._offered.set()

    async def stop(self) -> None:
        """Ends a load that runs."""
        await self._holder.stop()

    async def _follow(self, newest: int) -> None:
        """Brings engines to a version that is still needed: that in use, or else the newest."""
        if self._holder.version in self._schedule.needed(newest):
            await self._holder.renew()
        else:
            async with self._holder.playing(newest):
                pass
