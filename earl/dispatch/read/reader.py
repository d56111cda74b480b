"""The reader's side: name tensors by key and box, or sequences, get them in arrays of your own.

```
read: registry (one round trip) ─ plan ─ pieces by arena ─ transport per arena ─ receipt
map:  registry (one round trip) ─ plan ─ pieces by arena ─► copied by the caller (mapped_version.py)
```
Promise: when `read` returns, every target holds exactly the published bytes; when it raises, nothing
writes into a target any more. For keys of weights, what is gone is VersionGone: take the newer one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.descriptor import Descriptor, SequenceRecords
from earl.dispatch.describe.pieces import Pieces
from earl.dispatch.describe.regions import ArenaRef
from earl.dispatch.memory.open_arena import can_be_mapped
from earl.dispatch.read.cached_plan import Repeated as Repeated
from earl.dispatch.read.cached_plan import VersionRead
from earl.dispatch.read.mapped_version import MappedPart, MappedVersion
from earl.dispatch.read.replicas import refuse_disagreement
from earl.dispatch.read.resolve import Form, FromArena, Read, ReadPlan, assemble
from earl.dispatch.read.resolve_classes import CREDIT_BYTES, PublishedClasses, resolve
from earl.dispatch.read.resolve_sequences import SequenceRead, resolve_sequences
from earl.dispatch.registry.registry import WEIGHTS_PREFIX, Registry
from earl.dispatch.requirement import refuse_unmet
from earl.dispatch.transport.base import Transport, run_all
from earl.dispatch.transport.shm import SharedMemory
from earl.errors import (
    EarlError,
    LayoutError,
    ReadTimeout,
    RegionGone,
    RegistryUnavailable,
    TransportUnavailable,
    VersionGone,
)
from earl.worker_report import TransferTotals

AnyRead = Read | SequenceRead | VersionRead
# Descriptors by key, and records by their owner's key.
_Fetched = tuple[dict[str, Descriptor], dict[str, SequenceRecords]]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The record of a transfer: what it moved, and how.

    size_bytes_by_path: bytes by the path that was really used ("shm", "ucx-tcp", "nixl-tcp", "nixl-rdma").
    seconds: from the call to its end; planned_s: the part of them until the reads were planned. verified:
    whether checksums were compared for all bytes. retries: requests that were sent again.
    """

    size_bytes_by_path: Mapping[str, int]
    seconds: float
    verified: bool
    retries: int = 0
    planned_s: float = 0.0

    @property
    def size_bytes(self) -> int:
        return sum(self.size_bytes_by_path.values())

    @property
    def path(self) -> str:
        return "+".join(sorted(self.size_bytes_by_path))


@dataclass(slots=True)
class _Batch:
    """The part of a call to `read` that one arena serves, over which transport, and the outcome."""

    source: FromArena
    transport: Transport
    weights: bool
    verified: bool
    retries: int = 0


class Dispatcher:
    """Reads for one event loop. totals: of all reads so far, by path of the data plane."""

    def __init__(self, registry: Registry, config: DataPlaneConfig, secret: bytes) -> None:
        self._registry = registry
        self._config = config
        self._secret = secret
        self._shm = SharedMemory()
        self._wire: Transport | None = None
        # The peer to begin with: readers that all began with the same one would wait for each other.
        self._turn = secrets.randbelow(1 << 16)
        self.totals: dict[str, TransferTotals] = {}

    @classmethod
    async def create(cls, registry: Registry, config: DataPlaneConfig) -> Dispatcher:
        """Raises TransportUnavailable when what the configuration requires is not there."""
        refuse_unmet(config)
        return cls(registry, config, await registry.secret())

    async def read(
        self, reads: Sequence[AnyRead], deadline_s: float, *, replicas_equal: bool = True
    ) -> Receipt:
        """Fills every read's arrays, together, before the deadline.

        replicas_equal: refuse owners that hold the same arrays in different values; False where each computed
        them itself, so that they may differ by rounding.
        Raises DescriptorMissing, VersionGone, RegionGone, LayoutGap, LayoutOverlap, LayoutError, PeerLost,
        ReadTimeout, ChecksumMismatch, TransportUnavailable, RegistryUnavailable. PeerUnreachable, a PeerLost,
        is raised at the deadline: until then a peer that does not answer is asked again.
        """
        started = time.perf_counter()
        fetched: list[_Fetched] = []
        batches: list[_Batch] = []
        try:
            async with asyncio.timeout(deadline_s):
                fetched = await self._fetch(reads)
                batches = await self._batches(reads, fetched, replicas_equal)
                planned_s = time.perf_counter() - started
                await run_all(self._read_batch(batch) for batch in batches)
        except TimeoutError:
            raise _late(reads, deadline_s, fetched, batches) from None
        return self._receipt(batches, time.perf_counter() - started, planned_s)

    def _receipt(self, batches: Sequence[_Batch], seconds: float, planned_s: float) -> Receipt:
        by_path: dict[str, int] = {}
        for batch in batches:
            path = batch.transport.path_to(batch.source.arena)
            by_path[path] = by_path.get(path, 0) + batch.source.size_bytes
            self.totals.setdefault(path, TransferTotals(path=path)).retries += batch.retries
        for path, size_bytes in by_path.items():
            total = self.totals[path]
            total.size_bytes += size_bytes
            total.seconds += seconds
            total.transfers += 1
        verified = bool(batches) and all(batch.verified for batch in batches)
        retries = sum(batch.retries for batch in batches)
        return Receipt(by_path, seconds, verified, retries, planned_s)

    async def maps(self, keys: Sequence[str]) -> bool:
        """Returns whether `map` would find what these descriptors hold, and `data_plane` lets it be mapped.

        Raises VersionGone, DescriptorMissing, BusUnavailable.
        """
        arenas: dict[int, ArenaRef] = {}
        for descriptor in await self._registry.get(list(keys)):
            parts = [part for tensor in descriptor.tensors for part in tensor.shards]
            arenas |= {part.region.arena.nonce: part.region.arena for part in (*descriptor.classes, *parts)}
        return self._config.mapped and all(map(can_be_mapped, arenas.values()))

    async def map(self, read: VersionRead, deadline_s: float) -> MappedVersion:
        """Finds a version's slices where they lie in shared memory; nothing is copied.

        Whatever `data_plane.transport` is: who gives the keys decides that they are to be mapped. Digests are
        compared as in `read`. Raises as `read`, and TransportUnavailable where an arena cannot be mapped.
        """
        verify = self._config.checksums_by_memory
        try:
            async with asyncio.timeout(deadline_s):
                descriptors = dict(zip(read.keys, await self._registry.get(list(read.keys)), strict=True))
                refuse_disagreement(list(descriptors.values()))
                parts: list[MappedPart] = []
                for source in read.slices.plan(read.keys, descriptors, self._turn):
                    try:
                        arena = await self._shm.open(source.arena)
                    except RegionGone as error:
                        raise _gone(source.arena, True, error) from error
                    pieces = tuple(source.pieces(CREDIT_BYTES))
                    for some in pieces:
                        self._refuse_unverifiable(source.arena, some)
                    parts.append(MappedPart(source.arena.owner, arena, pieces))
                version = MappedVersion(tuple(parts), verify)
                version.check()
                if verify:
                    await asyncio.to_thread(version.confirm)
                return version
        except TimeoutError:
            raise RegistryUnavailable(
                f"a version under {', '.join(read.keys)} was not found within {deadline_s} s",
                "check the Redis server and the network to it; data_plane.read_s bounds a read",
            ) from None

    async def describe(self, keys: Sequence[str]) -> dict[str, Form]:
        """Dtype and shape of every tensor that these descriptors hold together, by name. Raises as `read`."""
        descriptors = await self._registry.get(list(keys))
        forms = {name: Form(t.layout.dtype, t.layout.shape) for name, t in assemble(descriptors).items()}
        for tensor_class in PublishedClasses(descriptors).classes():
            forms |= dict.fromkeys(tensor_class.names(), Form(tensor_class.dtype, tensor_class.shape))
        return forms

    async def close(self) -> None:
        """Releases mappings and connections."""
        await self._shm.close()
        if self._wire is not None:
            await self._wire.close()

    async def __aenter__(self) -> Dispatcher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _fetch(self, reads: Sequence[AnyRead]) -> list[_Fetched]:
        """Fetches from the registry what all reads need: descriptors, and records by read of sequences."""
        keys = list(
            dict.fromkeys(key for read in reads if not isinstance(read, SequenceRead) for key in read.keys)
        )
        # Records come in the order of one read's keys; further reads of sequences are rare.
        names = [read.by_owner().names for read in reads if isinstance(read, SequenceRead)]
        first, *others = names or [{}]
        fetched = [await self._registry.fetch(keys, first)]
        return fetched + [await self._registry.fetch([], each) for each in others]

    async def _batches(
        self, reads: Sequence[AnyRead], fetched: Sequence[_Fetched], replicas_equal: bool
    ) -> list[_Batch]:
        boxes = [read for read in reads if isinstance(read, Read)]
        sequences = [read for read in reads if isinstance(read, SequenceRead)]
        versions = [read for read in reads if isinstance(read, VersionRead)]
        groups = dict.fromkeys(read.keys for read in (*boxes, *versions))
        of_weights = {group for group in groups if any(key.startswith(WEIGHTS_PREFIX) for key in group)}
        owners = [read.by_owner() for read in sequences]
        descriptors, records = fetched[0][0], [held for _, held in fetched]
        for group in groups if replicas_equal else ():
            refuse_disagreement([descriptors[key] for key in group])
        published = [read for read in boxes if read.keys in of_weights]
        samples = ReadPlan()
        once = ReadPlan()
        resolve(published, descriptors, once, self._turn)
        weights = once.by_arena()
        plain: list[FromArena] = []
        for read in versions:
            sources = weights if read.keys in of_weights else plain
            sources += read.slices.plan(read.keys, descriptors, self._turn)
        resolve([read for read in boxes if read.keys not in of_weights], descriptors, samples, self._turn)
        for read, names, known in zip(sequences, owners, records, strict=False):
            resolve_sequences(read, names, known, samples)
        batches: list[_Batch] = []
        for versioned, sources in ((True, weights), (False, plain + samples.by_arena())):
            for source in sources:
                transport = await self._transport(source.arena, versioned)
                batches.append(_Batch(source, transport, versioned, self._verifies(transport)))
        return batches

    async def _read_batch(self, batch: _Batch) -> None:
        arena, verify = batch.source.arena, batch.verified
        try:
            for pieces in batch.source.pieces(CREDIT_BYTES):
                self._refuse_unverifiable(arena, pieces)
                batch.retries += await batch.transport.read(arena, pieces, verify=verify)
                batch.verified &= pieces.verifiable
        except RegionGone as error:
            raise _gone(arena, batch.weights, error) from error

    def _verifies(self, transport: Transport) -> bool:
        if self._config.checksums == "wire":
            return transport is not self._shm
        return self._config.checksums == "always"

    def _refuse_unverifiable(self, arena: ArenaRef, pieces: Pieces) -> None:
        if self._config.checksums == "always" and not pieces.verifiable:
            raise LayoutError(
                f"{arena.owner} published without checksums what is read here",
                "give owner and reader the same data_plane.checksums",
            )

    async def _transport(self, arena: ArenaRef, weights: bool) -> Transport:
        """shm where this process can map the arena, otherwise the wire, within what is configured."""
        wire = self._config.wire
        address = arena.nixl_address if wire == "nixl" else arena.ucx_address
        if self._config.mapped:
            try:
                await self._shm.open(arena)
                return self._shm
            except (RegionGone, TransportUnavailable) as error:
                if self._config.transport == "shm" or not address:
                    raise _gone(arena, weights, error) from error
        if self._config.require == "shm":
            raise TransportUnavailable(
                f"arena of {arena.owner} is not reachable by shared memory",
                'put reader and owner on one machine, or drop data_plane.require = "shm"',
            )
        if not address:
            raise TransportUnavailable(
                f"{arena.owner} does not serve its arena over {wire}",
                "give owner and reader the same data_plane.transport and require",
            )
        if self._wire is None:
            # Heavy: each loads a UCX of its own.
            if wire == "nixl":
                from earl.dispatch.transport.nixl.transport import Nixl as Wire
            else:
                from earl.dispatch.transport.ucx.transport import UcxTcp as Wire
            self._wire = Wire(self._config, self._secret)
        return self._wire


def _late(
    reads: Sequence[AnyRead], deadline_s: float, fetched: Sequence[_Fetched], batches: Sequence[_Batch]
) -> EarlError:
    """The error of reads that their deadline ended, by what it found them waiting for."""
    if not fetched:
        return RegistryUnavailable(
            f"the registry of descriptors gave no answer within {deadline_s} s",
            "check the Redis server and the network to it",
        )
    unreachable = [batch.transport.unreachable(batch.source.arena) for batch in batches]
    for error in filter(None, unreachable):
        return error
    return ReadTimeout(
        f"{len(reads)} reads were not done within {deadline_s} s",
        "is the wire slow, or the owner busy? data_plane.read_s bounds a read",
    )


def _gone(arena: ArenaRef, weights: bool, error: Exception) -> Exception:
    if not weights or not isinstance(error, RegionGone):
        return error
    return VersionGone(f"weights of {arena.owner}: {error.message}", "take the newer version")
