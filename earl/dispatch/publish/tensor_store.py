"""The owner's side: publish tensors under a key, keep their descriptors alive, free them.

```
reserve ─ caller writes in place ─► seal (checksums) ─► publish (one round trip) ─► renew … ─► remove
```
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.descriptor import Descriptor, ShardRef, TensorShards, row_major
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.describe.regions import RegionRef
from earl.dispatch.describe.tensor_classes import ClassShard, TensorClass, spaced
from earl.dispatch.layout.box import Box
from earl.dispatch.memory.allocator import rounded
from earl.dispatch.memory.arena import Arena, Region
from earl.dispatch.publish.sequence_store import SequenceStore
from earl.dispatch.registry import codec
from earl.dispatch.registry.registry import Registry, holder_mark
from earl.dispatch.serve.server_process import ServingProcess
from earl.errors import BusUnavailable, EarlError, KeyTaken, LayoutError
from earl.waiting import in_thread

log = logging.getLogger(__name__)
T = TypeVar("T")

# Renewals per lease: two may fail before a descriptor lapses.
_RENEWALS_PER_LEASE = 3
_LONGEST_RENEWAL_S = 2.0
# How long a registry that cannot be reached may delay the end of an owner.
_CLOSE_S = 2.0
# Below this a copy or checksum takes less time than handing it to a thread.
_INLINE_BYTES = 1 << 20
# A trainer rank publishes from two slots in turn.
_PLACES_KEPT = 2


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to reserve: whole, or `box` of a tensor of `shape`. Example: TensorSpec("int32", (412,))."""

    dtype: str
    shape: tuple[int, ...]
    box: Box | None = None

    @property
    def held(self) -> Box:
        return self.box if self.box is not None else Box.whole(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.held.size * numpy_dtype(self.dtype).itemsize

    @property
    def rounded_bytes(self) -> int:
        """Bytes of its aligned place in a region."""
        return rounded(self.size_bytes)


# (class, rank on its mesh, offset of its first tensor, bytes from each to the next)
_Placed = tuple[tuple[TensorClass, int, int, int], ...]


@dataclass(slots=True)
class _Entry:
    version: int
    region: Region
    specs: dict[str, TensorSpec]
    offsets: dict[str, int]
    classes: _Placed = ()
    # The published descriptor, encoded; empty before publish and once withheld.
    encoded: bytes = b""


class TensorStore:
    """Everything one owner publishes. Use from one loop; arrays from `reserve` may be filled anywhere.

    checksum: seal regions with checksums. serving: the arena's serving process, which `close` stops.
    """

    def __init__(
        self,
        arena: Arena,
        registry: Registry,
        *,
        checksum: bool = False,
        serving: ServingProcess | None = None,
    ) -> None:
        self.arena = arena
        self._registry = registry
        self._checksum = checksum
        self._mark = holder_mark(arena.ref)
        self._entries: dict[str, _Entry] = {}
        # By a region's offset: what lies there, and its arrays.
        self._arrays: dict[int, tuple[_Placed, dict[str, np.ndarray]]] = {}
        self._sequences: list[SequenceStore] = []
        self._renewing: asyncio.Task[None] | None = None
        self._serving = serving

    @classmethod
    async def open(
        cls,
        registry: Registry,
        config: DataPlaneConfig,
        directory: Path,
        owner: str,
        *,
        size_bytes: int,
        incarnation: int | None = None,
        grows_to: int = 0,
    ) -> TensorStore:
        """An arena of `size_bytes` in the run's `arena_directory`, served over the wire where configured.

        owner: a name that no other process has. incarnation: of this life of the owner; None: a random one.
        grows_to: bytes that it may take later. With NIXL, which registers an arena whole, it does not grow.
        Raises ConfigError when the arena does not fit, TransportUnavailable when it cannot be served.
        """
        most = grows_to if not config.wired or config.wire == "ucx" else 0
        incarnation = secrets.randbits(64) if incarnation is None else incarnation
        arena = await asyncio.to_thread(Arena.create, directory, owner, incarnation, size_bytes, most)
        if not config.wired:
            return cls(arena, registry, checksum=config.checksums_by_memory)
        try:
            serving = await ServingProcess.start(arena.ref, config, await registry.secret())
        except BaseException:
            arena.close()
            raise
        arena.served_at(**{f"{config.wire}_address": serving.address})
        return cls(arena, registry, checksum=config.checksums != "off", serving=serving)

    def reserve(self, key: str, specs: Mapping[str, TensorSpec], version: int = 0) -> dict[str, np.ndarray]:
        """Writable arrays in the arena, by name, shaped as each spec's box; then `publish([key])`.

        Raises ArenaFull, and LayoutError when the key is taken or a box leaves its shape.
        """
        if key in self._entries:
            raise LayoutError(f"{key} is held already", "remove it first, or publish under another key")
        offsets: dict[str, int] = {}
        size_bytes = 0
        for name, spec in specs.items():
            if len(spec.held.start) != len(spec.shape) or not Box.whole(spec.shape).contains(spec.held):
                raise LayoutError(
                    f"{key} {name}: box {spec.held} outside shape {spec.shape}", "give a box inside it"
                )
            offsets[name] = size_bytes
            size_bytes += spec.rounded_bytes
        region = self.arena.allocate(size_bytes)
        for name, spec in specs.items():
            region.clear_padding(offsets[name], 1, spec.rounded_bytes, spec.size_bytes)
        self._entries[key] = _Entry(version, region, dict(specs), offsets)
        return {
            name: region.array(numpy_dtype(spec.dtype), spec.held.shape, offsets[name])
            for name, spec in specs.items()
        }

    def reserve_classes(
        self, key: str, classes: Sequence[tuple[TensorClass, int]], version: int = 0, least_bytes: int = 0
    ) -> dict[str, np.ndarray]:
        """`reserve` for the part that this owner holds of whole classes, each with its rank on their mesh.

        Writable arrays by tensor, each shaped as the part of it; tensors of which it holds nothing are left
        out. least_bytes: the least size of the region, where regions of several sizes take turns.
        Raises ArenaFull, and LayoutError when the key is taken.
        """
        if key in self._entries:
            raise LayoutError(f"{key} is held already", "remove it first, or publish under another key")
        placed: list[tuple[TensorClass, int, int, int]] = []
        size_bytes = 0
        for tensor_class, rank in classes:
            count, part_bytes = tensor_class.extent(rank)
            placed.append((tensor_class, rank, size_bytes, spaced(part_bytes)))
            size_bytes += count * spaced(part_bytes)
        region = self.arena.allocate(max(size_bytes, least_bytes))
        for tensor_class, rank, offset, step in placed:
            count, part_bytes = tensor_class.extent(rank)
            region.clear_padding(offset, count, step, part_bytes)
        self._entries[key] = _Entry(version, region, {}, {}, tuple(placed))
        return self._class_arrays(region, tuple(placed))

    def _class_arrays(self, region: Region, placed: _Placed) -> dict[str, np.ndarray]:
        """The arrays of tensors in a region; those of the last places are kept, where versions take turns."""
        kept = self._arrays.get(region.offset_bytes)
        if kept is not None and kept[0] == placed:
            return dict(kept[1])
        arrays: dict[str, np.ndarray] = {}
        for tensor_class, rank, offset, step in placed:
            names, shape = tensor_class.held(rank)
            for i, name in enumerate(names):
                arrays[name] = region.array(numpy_dtype(tensor_class.dtype), shape, offset + i * step)
        while len(self._arrays) >= _PLACES_KEPT:
            del self._arrays[next(iter(self._arrays))]
        self._arrays[region.offset_bytes] = placed, arrays
        return dict(arrays)

    def sequences(self, key: str, columns: Sequence[tuple[str, str]]) -> SequenceStore:
        """A store of ragged sequences under a key of this owner's life; columns: (name, dtype's name)."""
        made = SequenceStore(self.arena, self._registry, key, columns, checksum=self._checksum)
        self._sequences.append(made)
        self._keep_renewing()
        return made

    async def publish(self, keys: str | Iterable[str], *, replace: bool = False) -> list[Descriptor]:
        """Seals what was reserved under these keys and makes it known, in one round trip.

        From here on the arrays must not be written until the key is removed. replace: whatever other owners
        hold these keys, which only one that knows of their end may do. Raises KeyTaken where another owner's
        lease lives: nothing is known then, and what was reserved stays reserved. Raises BusUnavailable.
        """
        keys = [keys] if isinstance(keys, str) else list(keys)
        descriptors: list[Descriptor] = []
        encoded: dict[str, bytes] = {}
        for key in keys:
            entry = self._entries.get(key)
            if entry is None:
                raise LayoutError(f"{key} was never reserved, or was removed", "reserve it first")
            ref = await _off_loop(
                entry.region.size_bytes if self._checksum else 0, entry.region.seal, self._checksum
            )
            classes = tuple(
                ClassShard(tensor_class, rank, ref, offset, step)
                for tensor_class, rank, offset, step in entry.classes
            )
            descriptor = Descriptor(key, entry.version, _tensors(entry, ref), classes)
            entry.encoded = encoded[key] = codec.encode(descriptor)
            descriptors.append(descriptor)
        try:
            await self._registry.publish_encoded(encoded, self._mark, replace=replace)
        except KeyTaken:
            for key in encoded:
                if key in self._entries:
                    self._entries[key].encoded = b""
            raise
        self._keep_renewing()
        return descriptors

    async def withhold(self, keys: str | Iterable[str]) -> None:
        """Forgets their descriptors for good, so that no reader comes; regions and who reads them stay.

        Keys not held are ignored. Raises BusUnavailable.
        """
        keys = [keys] if isinstance(keys, str) else list(keys)
        held = [key for key in keys if key in self._entries]
        for key in held:
            self._entries[key].encoded = b""
        await self._registry.release(held, self._mark)

    def free(self, key: str) -> None:
        """Frees the region of a key that was withheld; nothing if it is not held."""
        self._free([key])

    async def remove(self, keys: str | Iterable[str]) -> None:
        """Frees their regions and forgets their descriptors; keys not held are ignored."""
        keys = [keys] if isinstance(keys, str) else list(keys)
        held = [key for key in keys if key in self._entries]
        self._free(held)
        await self._registry.release(held, self._mark)

    async def reopen(self, key: str, into: str, version: int) -> None:
        """Withdraws what is published under `key`, and reserves the same arrays, as they are, under `into`.

        They may be changed then; readers of what they were get RegionGone. Raises LayoutError when `key` is
        not held, or `into` is; BusUnavailable.
        """
        if key not in self._entries or (into != key and into in self._entries):
            raise LayoutError(f"{key} cannot be published again as {into}", "see what TensorStore.keys has")
        entry = self._entries[into] = self._entries.pop(key)
        entry.version, entry.encoded = version, b""
        entry.region.reopen()
        await self._registry.release([key], self._mark)

    @property
    def keys(self) -> list[str]:
        """Keys that are reserved or published."""
        return list(self._entries)

    async def unserved(self) -> None:
        """Returns never. Raises TransportUnavailable once the arena cannot be served any more."""
        if self._serving is not None:
            await self._serving.ended()
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Forgets all descriptors, stop serving, remove the arena. Never raises for a Redis that is gone."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
            self._renewing = None
        keys = self.keys
        self._free(keys)
        for sequences in self._sequences:
            sequences.free()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._registry.release(keys, self._mark)
                for sequences in self._sequences:
                    await sequences.release()
        except (BusUnavailable, TimeoutError) as error:
            reason = str(error) or f"the registry gave no answer within {_CLOSE_S:g} s"
            log.warning("descriptors of %s lapse by themselves: %s", self.arena.ref.owner, reason)
        finally:
            self.arena.close()
            if self._serving is not None:
                await self._serving.stop()

    async def __aenter__(self) -> TensorStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _keep_renewing(self) -> None:
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew(), name="renew descriptors")

    def _free(self, keys: Iterable[str]) -> None:
        for key in keys:
            entry = self._entries.pop(key, None)
            if entry is not None:
                entry.region.free()

    def _published(self) -> dict[str, bytes]:
        return {key: entry.encoded for key, entry in self._entries.items() if entry.encoded}

    async def _renew(self) -> None:
        while True:
            # Often: a Redis that restarted empty must soon know everything again.
            await asyncio.sleep(min(self._registry.lease_s / _RENEWALS_PER_LEASE, _LONGEST_RENEWAL_S))
            for renewal in (self._renew_tensors, *(sequences.renew for sequences in self._sequences)):
                try:
                    if not await renewal():
                        log.warning("published descriptors of %s again that were lost", self.arena.ref.owner)
                except EarlError as error:
                    log.warning("leases of %s not renewed: %s", self.arena.ref.owner, error)

    async def _renew_tensors(self) -> bool:
        """Extends the leases of what is published; False if some was lost and had to be published again."""
        lapsed, taken = await self._registry.renew_held(list(self._published()), self._mark)
        for key in taken:
            if key in self._entries:
                self._entries[key].encoded = b""
        if taken:
            log.warning("%s are published by others now: not renewed any more", ", ".join(taken))
        published = self._published()
        again = {key: published[key] for key in lapsed if key in published}
        if again:
            await self._registry.publish_encoded(again, self._mark)
            # Those removed or withheld meanwhile must not have come back.
            await self._registry.release(again.keys() - self._published().keys(), self._mark)
        return not again


def _tensors(entry: _Entry, ref: RegionRef) -> tuple[TensorShards, ...]:
    tensors: list[TensorShards] = []
    for name, spec in entry.specs.items():
        strides = row_major(spec.held.shape, numpy_dtype(spec.dtype).itemsize)
        shard = ShardRef(spec.held, ref, entry.offsets[name], strides)
        tensors.append(TensorShards(name, spec.dtype, spec.shape, (shard,)))
    return tuple(tensors)


async def _off_loop(size_bytes: int, function: Callable[..., T], *args: Any) -> T:
    """Runs it here when it touches few bytes, else on a thread; cancelling waits for it to end."""
    if size_bytes <= _INLINE_BYTES:
        return function(*args)
    return await in_thread(function, *args)
