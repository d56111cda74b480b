"""One copy of a version for all engines of a worker, where they cannot apply it from the trainer's memory.

    publication ─► engines can map its arenas ──► the same publication
                └─ they cannot: another host ───► read once, whole, into an arena of the worker's ─┐
    engines ◄── a publication of that copy, until the next one replaces it ◄───────────────────────┘

Engines always apply a version from mapped memory (weight_staging.py). So a worker's engines take one copy
beside what they compute with, or none, however many they are.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from earl.dispatch.memory.allocator import ALIGNMENT_BYTES, occupied
from earl.dispatch.memory.arena import Arena
from earl.dispatch.publish.tensor_store import TensorSpec, TensorStore
from earl.dispatch.read.reader import Dispatcher
from earl.dispatch.read.resolve import Read
from earl.worker_report import TransferTotals
from services.rollout.engines.contract.data_thread import DataThread
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.contract.weight_staging import copy_key
from services.rollout.pool.replicas import Publication

# What applies a version from many owners' arenas while it steps; others are given tensors that lie whole.
GATHERING = "torch"


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
        specs = {
            name: TensorSpec(form.dtype, form.shape)
            for name, form in (await dispatcher.describe(publication.keys)).items()
        }
        self._last = None
        store = await self._emptied_store(sum(spec.rounded_bytes for spec in specs.values()))
        key = copy_key(publication.version, self._owner)
        arrays = store.reserve(key, specs, publication.version)
        try:
            reads = [Read(publication.keys, name, None, array) for name, array in arrays.items()]
            await dispatcher.read(reads, deadline_s)
            await store.publish(key)
        except BaseException:
            await store.remove(key)
            raise
        return replace(publication, keys=(key,))

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
