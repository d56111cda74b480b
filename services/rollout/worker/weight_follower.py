"""Follows the published policy versions and loads the newest into the engines.

    WeightsPublished ──► offer ──► last one only ──► take reader's lease ─► pool.load ─► give it back
                                        ▲                                      │
                                        └─────────── VersionGone ◄─────────────┘

Promises: the last publication is the one that is loaded, whatever its version (a trainer restored from a
checkpoint publishes older versions again); one load runs at a time; the trainer's slot is held by a lease
that ends by itself if this A trainer that cannot be reached, or a registry, is waited for:
the run, not this worker, decides how long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from earl.bus.reader_leases import ReaderLeases
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
from services.rollout.pool.replicas import ATTEMPTS, NOTHING, RETRY_S, Publication

log = logging.getLogger(__name__)


class WeightFollower:
    """Loads what was published last into the pool. lease_s: how long the trainer's slot is held for one load
    at most."""

    def __init__(self, pool: EnginePool, leases: ReaderLeases, spans: BusySpans, *, lease_s: float) -> None:
        self._pool = pool
        self._leases = leases
        self._spans = spans
        self._lease_s = lease_s
        self._last = NOTHING
        self._offered = asyncio.Event()

    def offer(self, version: int, keys: Sequence[str]) -> bool:
        """Notes a publication, newer than all before; returns whether its version is not: a roll-back."""
        rolled_back = version <= self._last.version
        self._last = Publication(self._last.number + 1, version, tuple(keys))
        self._offered.set()
        return rolled_back

    async def wait_begun(self) -> None:
        """Returns at once: episodes wait for a version that all workers get."""

    async def run(self) -> None:
        """Loads what is offered until it is cancelled. Raises the error of the last of ATTEMPTS failures in a
        row."""
        failures = 0
        while True:
            await self._offered.wait()
            self._offered.clear()
            last = self._last
            try:
                await self._load(last)
                failures = 0
            except VersionGone as gone:
                # Its slot was reused, so another version was published: that event is on its way.
                log.info("version %d was withdrawn before it was read: %s", last.version, gone.message)
            except (PeerLost, RegistryUnavailable) as error:
                log.warning("version %d cannot be read now: %s", last.version, error)
                await asyncio.sleep(RETRY_S)
                self._offered.set()
            except (DataPlaneError, EngineError, DeadlineExceeded) as error:
                failures += 1
                if failures >= ATTEMPTS:
                    raise
                log.warning("loading version %d failed, trying again: %s", last.version, error)
                await asyncio.sleep(RETRY_S)
                self._offered.set()

    async def _load(self, publication: Publication) -> None:
        started_ns = time.time_ns()
        try:
            async with self._leases.hold(publication.version, self._lease_s):
                await self._pool.load(publication)
        finally:
            self._spans.add("load", started_ns, time.time_ns())
