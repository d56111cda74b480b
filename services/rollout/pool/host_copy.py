"""One copy of a version for all engines of a worker, where they cannot apply it from the trainer's memory.

    publication ─► engines can map its arenas ──► the same publication
                └─ they cannot: another host ───► read once, into an arena of the worker's ─┐
    engines ◄── a publication of that copy, until the next one replaces it ◄────────────────┘

With `data_plane.changes_fraction`, a copy of exactly the version before becomes the next one by what changed.
Where it is none, or the changes cannot be used, the version is read whole.

Engines always apply a version from mapped memory (weight_staging.py). So a worker's engines take one copy
beside what they compute with, or none, however many they are.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from earl.dispatch.changes.record import PublishedRegion
from earl.dispatch.memory.allocator import ALIGNMENT_BYTES, occupied
from earl.dispatch.memory.arena import Arena
from earl.dispatch.publish.tensor_store import TensorSpec, TensorStore
from earl.dispatch.read.changes import VersionChanges, published_regions, read_changes
from earl.dispatch.read.reader import Dispatcher
from earl.dispatch.read.resolve import Read
from earl.errors import ChangesUnusable, ChecksumMismatch, LayoutError, VersionGone
from earl.waiting import in_thread
from earl.worker_report import TransferTotals
from services.rollout.engines.contract.data_thread import DataThread
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.contract.weight_staging import copy_key
from services.rollout.pool.replicas import Publication

# What applies a version from many owners' arenas while it steps; others are given tensors that lie whole.
GATHERING = "torch"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CopyReads:
    """Versions that were read into a copy so far, whole and by what changed, and the bytes of each kind.

    refused: versions whose changes could not be used, and which were read whole.
    """

    whole: int = 0
    changes: int = 0
    refused: int = 0
    whole_bytes: int = 0
    changes_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _CopiedVersion:
    """The version in the copy. key: of the copy. regions: that it was read from. arrays: by tensor."""

    key: str
    regions: frozenset[PublishedRegion]
    arrays: Mapping[str, np.ndarray]


class HostCopy:
    """The copy of a worker. spec: what its engines are like; its name is the worker's."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._owner = f"{spec.name}-copy".replace("/", "-")
        self._incarnation = secrets.randbits(64)
        self._data = DataThread(spec)
        self._lock = asyncio.Lock()
        self._store: TensorStore | None = None
        self._store_bytes = 0
        # What was brought last, and what engines were given for it.
        self._last: tuple[Publication, Publication] | None = None
        # What changes may lead on from.
        self._copied: _CopiedVersion | None = None
        self.reads = CopyReads()

    async def bring(self, publication: Publication, deadline_s: float) -> Publication:
        """Returns what the engines are to load for this publication. One that was brought before stays valid
        until the next one is brought.

        Raises VersionGone, PeerLost or another DataPlaneError; ConfigError if there is no memory for a copy.
        """
        return await self._data.run(self._bring(publication, deadline_s))

    @property
    def transfers(self) -> list[TransferTotals]:
        """Totals of what was read into the copy, by path of the data plane."""
        return self._data.transfers

    async def close(self) -> None:
        """Frees the copy."""
        await asyncio.to_thread(self._data.close)

    # --- in the data plane's thread -------------------------------------------------------------

    async def _bring(self, publication: Publication, deadline_s: float) -> Publication:
        async with self._lock:
            if self._last is None or self._last[0] != publication:
                dispatcher = await self._data.dispatcher()
                given = publication
                if not await self._applies(dispatcher, publication.keys):
                    given = await self._copy(dispatcher, publication, deadline_s)
                self._last = publication, given
            return self._last[1]

    async def _applies(self, dispatcher: Dispatcher, keys: Sequence[str]) -> bool:
        """Returns whether engines can apply it from where it was published."""
        alone = len(keys) == 1 or self._spec.engine == GATHERING
        return alone and await dispatcher.maps(keys)

    async def _copy(self, dispatcher: Dispatcher, publication: Publication, deadline_s: float) -> Publication:
        key = copy_key(publication.version, self._owner)
        copied = self._copied
        changes = None
        if copied is not None:
            changes = await self._changes(dispatcher, publication, copied, deadline_s)
        self._last = self._copied = None
        if copied is not None and changes is not None:
            self._copied = await self._changed(key, publication, copied, changes)
        else:
            self._copied = await self._read_whole(key, dispatcher, publication, deadline_s)
        return replace(publication, keys=(key,))

    async def _changes(
        self, dispatcher: Dispatcher, publication: Publication, copied: _CopiedVersion, deadline_s: float
    ) -> VersionChanges | None:
        """Reads the changes from the version in the copy, which stays as it is; None if there are none."""
        registry = await self._data.registry()
        slices = [(name, None, array) for name, array in copied.arrays.items()]
        try:
            return await read_changes(
                registry, dispatcher, publication.keys, copied.regions, slices, deadline_s
            )
        except VersionGone:
            return None  # no changes, unless the version is gone, too
        except (ChangesUnusable, ChecksumMismatch, LayoutError) as error:
            self.reads.refused += 1
            log.warning("version %d is read whole: %s", publication.version, error.message)
            return None

    async def _changed(
        self, key: str, publication: Publication, copied: _CopiedVersion, changes: VersionChanges
    ) -> _CopiedVersion:
        store = self._store
        assert store is not None
        try:
            await store.reopen(copied.key, key, publication.version)
            await in_thread(changes.apply)
            await store.publish(key)
        except BaseException:
            await store.remove(key)
            raise
        self.reads.changes += 1
        self.reads.changes_bytes += changes.size_bytes
        return replace(copied, key=key, regions=changes.regions)

    async def _read_whole(
        self, key: str, dispatcher: Dispatcher, publication: Publication, deadline_s: float
    ) -> _CopiedVersion | None:
        """Reads a version; returns what changes may lead on from, None where they are not used."""
        before = await self._regions(publication)
        specs = {
            name: TensorSpec(form.dtype, form.shape)
            for name, form in (await dispatcher.describe(publication.keys)).items()
        }
        store = await self._emptied_store(sum(spec.rounded_bytes for spec in specs.values()))
        arrays = store.reserve(key, specs, publication.version)
        try:
            reads = [Read(publication.keys, name, None, array) for name, array in arrays.items()]
            receipt = await dispatcher.read(reads, deadline_s)
            await store.publish(key)
        except BaseException:
            await store.remove(key)
            raise
        self.reads.whole += 1
        self.reads.whole_bytes += receipt.size_bytes
        # Published again meanwhile, it is not known which of both was read.
        same = before is not None and before == await self._regions(publication)
        return _CopiedVersion(key, before, arrays) if before is not None and same else None

    async def _regions(self, publication: Publication) -> frozenset[PublishedRegion] | None:
        if not self._data.config.changes_fraction:
            return None
        try:
            return await published_regions(await self._data.registry(), publication.keys)
        except (ChangesUnusable, VersionGone):
            return None

    async def _emptied_store(self, size_bytes: int) -> TensorStore:
        """An empty store of at least this size. Whoever still applies what it held finds that it is gone."""
        if self._store is not None:
            await self._store.remove(self._store.keys)
            if self._store_bytes >= size_bytes:
                return self._store
            store, self._store = self._store, None
            await store.close()
        else:
            self._data.on_close(self._end)
        arena = await asyncio.to_thread(
            Arena.create,
            Path(self._spec.arena_dir),
            self._owner,
            self._incarnation,
            occupied(size_bytes) + ALIGNMENT_BYTES,
        )
        checksum = self._data.config.checksums_by_memory
        self._store = TensorStore(arena, await self._data.registry(), checksum=checksum)
        self._store_bytes = size_bytes
        return self._store

    async def _end(self) -> None:
        if self._store is not None:
            await self._store.close()
