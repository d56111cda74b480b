"""The reader's side: name tensors by key and box, get them in arrays of your own.

```
read: registry.get (one round trip) ─ plan per tensor ─ pieces by arena ─ transport per arena ─ receipt
```
Promise: when `read` returns, every target holds exactly the published bytes; when it raises, nothing
writes into a target any more. For keys of weights, what is gone is VersionGone: take the newer one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.descriptor import ArenaRef, Descriptor, ShardRef, host_id, numpy_dtype
from earl.dispatch.layout import Box, Layout, ShardBox
from earl.dispatch.plan import plan
from earl.dispatch.registry import WEIGHTS_PREFIX, Registry
from earl.dispatch.transport.base import Piece, Transport, run_all
from earl.dispatch.transport.shm import SharedMemory
from earl.errors import LayoutError, LayoutGap, ReadTimeout, RegionGone, TransportUnavailable, VersionGone


@dataclass(frozen=True, slots=True)
class Read:
    """One tensor, or `box` (global indices) of it, into an array of the box's shape.

    keys: every descriptor that together holds it. into: dtype as published, uint16 for bfloat16.
    """

    keys: tuple[str, ...]
    name: str
    box: Box | None
    into: np.ndarray


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a transfer did: bytes by the path really used ("shm", "ucx-tcp"), seconds, checksums verified."""

    size_bytes_by_path: Mapping[str, int]
    seconds: float
    verified: bool

    @property
    def size_bytes(self) -> int:
        return sum(self.size_bytes_by_path.values())

    @property
    def path(self) -> str:
        return "+".join(sorted(self.size_bytes_by_path))


@dataclass(slots=True)
class PathTotal:
    """All transfers of one path since the dispatcher was made."""

    size_bytes: int = 0
    seconds: float = 0.0
    transfers: int = 0


@dataclass(frozen=True, slots=True)
class _Tensor:
    layout: Layout
    shards: tuple[ShardRef, ...]


@dataclass(slots=True)
class _Batch:
    """The pieces of one read that come out of one arena."""

    arena: ArenaRef
    weights: bool
    pieces: list[Piece] = field(default_factory=list)


class Dispatcher:
    """Reads for one loop. `totals` counts by path."""

    def __init__(self, registry: Registry, config: DataPlaneConfig, secret: bytes) -> None:
        self._registry = registry
        self._config = config
        self._secret = secret
        self._shm = SharedMemory()
        self._wire: Transport | None = None
        self.totals: dict[str, PathTotal] = {}

    @classmethod
    async def create(cls, registry: Registry, config: DataPlaneConfig) -> Dispatcher:
        """Raises TransportUnavailable when what the configuration requires is not there."""
        refuse_unmet(config)
        return cls(registry, config, await registry.secret())

    async def read(self, reads: Sequence[Read], deadline_s: float) -> Receipt:
        """Fill every read's array, together, before the deadline.

        Raises DescriptorMissing, VersionGone, RegionGone, LayoutGap, LayoutError, PeerLost, ReadTimeout,
        ChecksumMismatch, TransportUnavailable, BusUnavailable.
        """
        started = time.perf_counter()
        try:
            async with asyncio.timeout(deadline_s):
                batches = self._batches(reads, await self._describe(reads))
                transports = [await self._transport(batch) for batch in batches]
                await run_all(
                    self._read_batch(batch, transport)
                    for batch, transport in zip(batches, transports, strict=True)
                )
        except TimeoutError:
            size_bytes = sum(read.into.nbytes for read in reads)
            raise ReadTimeout(
                f"{len(reads)} tensors, {size_bytes} bytes, were not read within {deadline_s} s",
                "is the owner frozen or the wire slow? data_plane.read_s bounds a read",
            ) from None
        by_path: dict[str, int] = {}
        for batch, transport in zip(batches, transports, strict=True):
            size_bytes = sum(piece.size_bytes for piece in batch.pieces)
            by_path[transport.path] = by_path.get(transport.path, 0) + size_bytes
        seconds = time.perf_counter() - started
        for path, size_bytes in by_path.items():
            total = self.totals.setdefault(path, PathTotal())
            total.size_bytes += size_bytes
            total.seconds += seconds
            total.transfers += 1
        verified = bool(batches) and all(
            self._verifies(transport) and all(piece.region.checksums for piece in batch.pieces)
            for batch, transport in zip(batches, transports, strict=True)
        )
        return Receipt(by_path, seconds, verified)

    async def describe(self, keys: Sequence[str]) -> dict[str, Layout]:
        """The layouts of every tensor that these descriptors hold together, by name. Raises as `read`."""
        tensors = _assemble(await self._registry.get(list(keys)))
        return {name: tensor.layout for name, tensor in tensors.items()}

    async def close(self) -> None:
        """Release mappings and connections."""
        await self._shm.close()
        if self._wire is not None:
            await self._wire.close()

    async def __aenter__(self) -> Dispatcher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _describe(self, reads: Sequence[Read]) -> dict[tuple[str, ...], dict[str, _Tensor]]:
        keys = list(dict.fromkeys(key for read in reads for key in read.keys))
        found = dict(zip(keys, await self._registry.get(keys), strict=True))
        groups = dict.fromkeys(read.keys for read in reads)
        return {group: _assemble([found[key] for key in group]) for group in groups}

    def _batches(
        self, reads: Sequence[Read], known: Mapping[tuple[str, ...], Mapping[str, _Tensor]]
    ) -> list[_Batch]:
        batches: dict[tuple[int, bool], _Batch] = {}
        for read in reads:
            tensor = known[read.keys].get(read.name)
            if tensor is None:
                raise LayoutGap(
                    f"no tensor {read.name!r} under {', '.join(read.keys)}",
                    f"published there: {', '.join(sorted(known[read.keys])[:8])}",
                )
            weights = any(key.startswith(WEIGHTS_PREFIX) for key in read.keys)
            for piece in _pieces(read, tensor):
                arena = piece.region.arena
                batch = batches.setdefault((arena.nonce, weights), _Batch(arena, weights))
                batch.pieces.append(piece)
        return list(batches.values())

    async def _read_batch(self, batch: _Batch, transport: Transport) -> None:
        try:
            await transport.read(batch.arena, batch.pieces, verify=self._verifies(transport))
        except RegionGone as error:
            raise _gone(batch, error) from error

    def _verifies(self, transport: Transport) -> bool:
        if self._config.checksums == "wire":
            return transport is not self._shm
        return self._config.checksums == "always"

    async def _transport(self, batch: _Batch) -> Transport:
        """shm where this process can map the arena, otherwise the wire, within what is configured."""
        arena = batch.arena
        if self._config.transport != "ucx":
            try:
                await self._shm.open(arena)
                return self._shm
            except (RegionGone, TransportUnavailable) as error:
                if self._config.transport == "shm" or not arena.ucx_address:
                    raise (_gone(batch, error) if isinstance(error, RegionGone) else error) from error
        if self._config.require == "shm":
            raise TransportUnavailable(
                f"arena of {arena.owner} is not reachable by shared memory",
                'put reader and owner on one machine, or drop data_plane.require = "shm"',
            )
        if not arena.ucx_address:
            raise TransportUnavailable(
                f"{arena.owner} does not serve its arena over the wire", 'set data_plane.transport = "ucx"'
            )
        if self._wire is None:
            from earl.dispatch.transport.ucx import UcxTcp  # heavy: loads UCX

            self._wire = UcxTcp(self._config, self._secret)
        return self._wire


def refuse_unmet(config: DataPlaneConfig) -> None:
    """Raises TransportUnavailable when `require` names what this build or configuration cannot give."""
    if config.require == "rdma":
        raise TransportUnavailable(
            'data_plane.require = "rdma", and the wire here is UCX over TCP: this build of UCX has no verbs',
            "drop the requirement, or install a system UCX with verbs",
        )
    if config.require == "shm" and config.transport == "ucx":
        raise TransportUnavailable(
            'data_plane.require = "shm" with transport = "ucx"',
            'set transport = "shm" or drop the requirement',
        )


def _gone(batch: _Batch, error: Exception) -> Exception:
    if not batch.weights or not isinstance(error, RegionGone):
        return error
    return VersionGone(f"weights of {batch.arena.owner}: {error.message}", "take the newer version")


def _assemble(descriptors: Sequence[Descriptor]) -> dict[str, _Tensor]:
    """Tensors by name, with the shards of all descriptors. Raises LayoutError when they disagree."""
    shards: dict[str, list[ShardRef]] = {}
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for descriptor in descriptors:
        for tensor in descriptor.tensors:
            said = (tensor.dtype, tensor.shape)
            if shapes.setdefault(tensor.name, said) != said:
                raise LayoutError(
                    f"{tensor.name} is {said} under {descriptor.key} and {shapes[tensor.name]} elsewhere",
                    "read keys of one version only",
                )
            shards.setdefault(tensor.name, []).extend(tensor.shards)
    return {
        name: _Tensor(
            Layout(name, dtype, shape, tuple(ShardBox(s.region.arena.owner, s.box) for s in shards[name])),
            tuple(shards[name]),
        )
        for name, (dtype, shape) in shapes.items()
    }


def _pieces(read: Read, tensor: _Tensor) -> list[Piece]:
    layout = tensor.layout
    box = read.box if read.box is not None else Box.whole(layout.shape)
    dtype = numpy_dtype(layout.dtype)
    if read.into.dtype != dtype or read.into.shape != box.shape or not read.into.flags.writeable:
        raise LayoutError(
            f"{read.name}: target {read.into.dtype} {read.into.shape}, box {layout.dtype} {box.shape}",
            f"give a writable array of {dtype} {box.shape}",
        )
    cost = {s.region.arena.owner: float(s.region.arena.host != host_id()) for s in tensor.shards}
    pieces: list[Piece] = []
    for copy in plan(layout, box, cost):
        shard = tensor.shards[copy.shard_index]
        offset = shard.offset_bytes + sum(
            i * stride for i, stride in zip(copy.source.start, shard.strides_bytes, strict=True)
        )
        pieces.append(
            Piece(shard.region, offset, shard.strides_bytes, read.into[(..., *copy.target.slices())])
        )
    return pieces
