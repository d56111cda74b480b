"""Keeps a pool's engines at one version of the policy for as long as episodes need it.

    playing(v) ──► its turn ──► episodes at another version have ended ──► load v ──► arrange ──► plays
                                                                            ▲   │
                                              PeerLost, VersionGone: again ─┴───┘

Promises: while an episode plays at a version, the engines have no other. Turns are taken in the order in
which episodes asked, so that none waits for ever; or the oldest version has the next turn, where the tickets
of older versions run out. A version that a trainer made again, after it went back to an older checkpoint, is
loaded again. What the trainer no longer keeps is not waited for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import insort
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count

from earl.dispatch.registry.registry import frozen_key
from earl.errors import PeerLost, RegistryUnavailable, VersionGone
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.pool.pool import EnginePool
from services.rollout.pool.replicas import RETRY_S, ChangeNotifier, Publication

log = logging.getLogger(__name__)


class VersionHolder:
    """The one version that all engines of a pool have.

    needed: the versions that the trainer keeps readable while a version is trained. oldest_first: turns are
    taken by version. spans: of loads; None where nobody asks when engines were busy. arrange: prepares
    engines that have a version for its episodes, and gets whether the trainer keeps it; None where there is
    nothing to do.
    """

    def __init__(
        self,
        pool: EnginePool,
        needed: Callable[[int], Sequence[int]],
        *,
        oldest_first: bool = False,
        spans: BusySpans | None = None,
        arrange: Callable[[int, Callable[[], bool]], Awaitable[None]] | None = None,
    ) -> None:
        self._pool = pool
        self._needed = needed
        self._oldest_first = oldest_first
        self._spans = spans
        self._arrange = arrange
        # The version that the engines have; 0 if none, or another one of that number.
        self.version = 0
        # What the trainer published last.
        self.published = 0
        # Whose turn it is, in order: (version or 0, arrival) of each episode that has not begun.
        self._waiting: list[tuple[int, int]] = []
        self._arrivals = count()
        # The first of them loads its version.
        self._beginning = False
        self._players = 0
        self._changes = ChangeNotifier()
        self._loading: asyncio.Task[None] | None = None
        self._loads = 0
        self._last: Publication | None = None

    def offer(self, version: int) -> None:
        """Notes that this version of the policy was published."""
        self.published = version
        if version < self.version:
            self.version = 0
        self._changes.tell()

    @asynccontextmanager
    async def playing(self, version: int) -> AsyncIterator[None]:
        """The engines have this version until the block ends.

        Raises VersionGone for one that the trainer no longer keeps, and what EnginePool.load and `arrange`
        raise.
        """
        turn = (version if self._oldest_first else 0, next(self._arrivals))
        insort(self._waiting, turn)
        try:
            while not self._may_begin(turn, version):
                await self._changes.wait()
            self._beginning = True
            try:
                if not self._has(version):
                    await self._load(version)
                self._players += 1
            finally:
                self._beginning = False
        finally:
            self._waiting.remove(turn)
            self._changes.tell()
        try:
            yield
        finally:
            self._players -= 1
            self._changes.tell()

    async def renew(self) -> None:
        """Loads the version again into engines that have lost it. Raises what EnginePool.load raises."""
        if self._last is not None and self._last.version == self.version:
            await self._pool.load(self._last)

    async def stop(self) -> None:
        """Ends a load that runs."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)

    # --- within -------------------------------------------------------------------------------

    def _may_begin(self, turn: tuple[int, int], version: int) -> bool:
        if self._beginning or self._waiting[0] != turn:
            return False
        return self.version == version or not self._players

    def _has(self, version: int) -> bool:
        return self.version == version and self._pool.live > 0

    async def _load(self, version: int) -> None:
        if self._loading is not None:
            await asyncio.wait([self._loading])  # of an episode that was cancelled
        if self._has(version):
            return
        self.version = 0
        # An episode that is cancelled leaves the engines whole for the next one.
        self._loading = asyncio.create_task(self._bring(version), name=f"load version {version}")
        await asyncio.shield(self._loading)

    async def _bring(self, version: int) -> None:
        while True:
            self._loads += 1
            publication = Publication(self._loads, version, (frozen_key(version),))
            started_ns = time.time_ns()
            try:
                await self._pool.load(publication)
                break
            except (PeerLost, RegistryUnavailable, VersionGone) as error:
                # A trainer that starts again publishes what it keeps, before anything else.
                if version not in self._needed(self.published):
                    raise
                log.warning("version %d cannot be read yet: %s", version, error.message)
            finally:
                if self._spans is not None:
                    self._spans.add("load", started_ns, time.time_ns())
            await asyncio.sleep(RETRY_S)
        if self._arrange is not None:
            await self._arrange(version, lambda: version in self._needed(self.published))
        # Otherwise it was given up meanwhile, and so were those who asked for it.
        if version <= self.published:
            self.version, self._last = version, publication
