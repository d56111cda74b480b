"""Descriptors to bytes and back. Decoding validates everything that a reader relies on.

A descriptor's bytes are a digest and a protobuf message; the digest is of the message. Those of sequences are
digests of the owner's key too, and of the sequence's name, so that none is taken for another one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np
import xxhash
from google.protobuf.message import DecodeError

from earl.dispatch.describe.descriptor import (
    Descriptor,
    SequenceRecords,
    ShardRef,
    TensorShards,
    packed,
    row_major,
)
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.describe.regions import CHECKSUM_BLOCK_BYTES, ArenaRef, RegionRef, Regions
from earl.dispatch.describe.tensor_classes import ClassShard, TensorClass
from earl.dispatch.layout.box import Box
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import Placement
from earl.errors import LayoutError
from earl.message_fields import from_message, to_message
from earl.v1 import layout_pb2 as pb

_PREFIX = "DTYPE_"
_KIND = "PLACEMENT_KIND_"
# A mesh of more owners than this is taken for damage.
_MOST_RANKS = 1 << 16
# No arena and no tensor is larger.
_MOST_BYTES = 1 << 48
# Words of a sequence's record before its blocks' digests; the last word is the record's digest.
_WORDS = 4
_DIGEST_BYTES = 8


def encode(descriptor: Descriptor) -> bytes:
    """A descriptor's bytes; each arena and region appears once in it."""
    message = pb.LayoutDescriptor(key=descriptor.key, version=descriptor.version)
    arenas: dict[ArenaRef, int] = {}
    regions: dict[int, int] = {}  # by identity: hashing a region hashes all its checksums

    def number(region: RegionRef) -> int:
        if id(region) not in regions:
            if region.arena not in arenas:
                arenas[region.arena] = len(arenas)
                message.arenas.append(to_message(pb.ArenaRef, region.arena))
            regions[id(region)] = len(regions)
            message.regions.append(to_message(pb.Region, region, arena=arenas[region.arena]))
        return regions[id(region)]

    for tensor in descriptor.tensors:
        dtype = pb.Dtype.Value(_PREFIX + tensor.dtype.upper())
        layout = message.tensors.add(name=tensor.name, dtype=dtype, shape=tensor.shape)
        item_bytes = numpy_dtype(tensor.dtype).itemsize
        for shard in tensor.shards:
            entry = layout.shards.add(region=number(shard.region), offset_bytes=shard.offset_bytes)
            entry.box.start.extend(shard.box.start)
            entry.box.stop.extend(shard.box.stop)
            if shard.strides_bytes != row_major(shard.box.shape, item_bytes):
                entry.strides_bytes.extend(shard.strides_bytes)
    for shard in descriptor.classes:
        _add_class(message, shard, number(shard.region))
    return _sealed(message.SerializeToString())


def decode(data: bytes) -> Descriptor:
    """The values of a descriptor. Raises LayoutError when it is damaged or inconsistent."""
    message = pb.LayoutDescriptor()
    try:
        message.ParseFromString(_check_digest(data))
        arenas = [from_message(ArenaRef, arena) for arena in message.arenas]
        regions = [from_message(RegionRef, region, arena=arenas[region.arena]) for region in message.regions]
        for region in regions:
            _check_region(region)
        tensors = tuple(_tensor(layout, regions) for layout in message.tensors)
        classes = tuple(_class(entry, regions) for entry in message.classes)
    except (DecodeError, IndexError, ValueError, OverflowError) as error:
        raise _damaged(f"damaged descriptor of {len(data)} bytes: {error}") from error
    return Descriptor(message.key, message.version, tensors, classes)


def encode_head(key: str, arena: ArenaRef, columns: Sequence[tuple[str, str]]) -> bytes:
    """The bytes of the head of an owner's sequences under its key. columns: (name, dtype's name)."""
    message = pb.SequenceHead(arena=to_message(pb.ArenaRef, arena), checksum_block_bytes=CHECKSUM_BLOCK_BYTES)
    for name, dtype in columns:
        message.columns.add(name=name, dtype=pb.Dtype.Value(_PREFIX + dtype.upper()))
    return _sealed(message.SerializeToString(), key)


def encode_record(key: str, rows: int, region: RegionRef) -> bytes:
    """A sequence's record: its rows, slot, generation, offset, checksums and a digest of all that and of the
    key by which readers know it, as little-endian uint64.
    """
    words = (rows, region.slot, region.generation, region.offset_bytes, *region.checksums)
    record = np.array(words, "<u8").tobytes()
    return record + _digest(record, key)


def decode_sequences(
    owner: str, head: bytes, names: Sequence[str], records: Sequence[bytes]
) -> SequenceRecords:
    """Some sequences under an owner's key, by name, in order. Raises LayoutError when anything is damaged."""
    message = pb.SequenceHead()
    lengths = np.array([len(record) - _DIGEST_BYTES for record in records], np.int64)
    try:
        message.ParseFromString(_check_digest(head, owner))
        columns = tuple((c.name, _dtype(c.dtype)) for c in message.columns)
        if not columns or message.checksum_block_bytes < 1 or not message.HasField("arena"):
            raise ValueError("no columns, no arena or no size of blocks")
        if (lengths % 8).any() or (lengths < 8 * _WORDS).any():
            raise ValueError(f"records of {lengths.min()} to {lengths.max()} bytes")
        parts = [record[:-_DIGEST_BYTES] for record in records]
        for name, part, record in zip(names, parts, records, strict=True):
            if _digest(part, f"{owner}#{name}") != record[-_DIGEST_BYTES:]:
                raise ValueError(f"the record of {name} has another digest")
    except (DecodeError, ValueError) as error:
        raise LayoutError(f"damaged sequences of {owner}: {error}", "publish them again") from error
    words = np.frombuffer(b"".join(parts), "<u8")
    counts = lengths // 8
    first = np.cumsum(counts) - counts
    table = words[first[:, None] + np.arange(_WORDS)] if len(first) else np.zeros((0, _WORDS), np.uint64)
    rows = table[:, 0].astype(np.int64)
    if (table[:, [0, 1, 3]] >= 1 << 40).any():
        raise LayoutError(f"damaged records: rows {rows[:4]}", "publish them again")
    _, sizes = packed(rows, [numpy_dtype(dtype).itemsize for _, dtype in columns])
    digests = np.ones(len(words), bool)
    digests[(first[:, None] + np.arange(_WORDS)).ravel()] = False
    regions = Regions(
        table[:, 1].astype(np.int64),
        table[:, 2].astype(np.uint64),
        table[:, 3].astype(np.int64),
        sizes,
        np.concatenate([np.zeros(1, np.int64), np.cumsum(counts - _WORDS)]),
        words[digests].astype(np.uint64),
        message.checksum_block_bytes,
    )
    blocks = -(-sizes // message.checksum_block_bytes)
    if ((counts > _WORDS) & (counts - _WORDS != blocks)).any():
        raise LayoutError("damaged records: not a digest for each block", "publish them again")
    return SequenceRecords(from_message(ArenaRef, message.arena), columns, rows, regions)


def _digest(data: bytes, key: str = "") -> bytes:
    """Digest of bytes that belong to a key; the message of a descriptor names its key itself."""
    seed = xxhash.xxh3_64_intdigest(key.encode()) if key else 0
    return xxhash.xxh3_64_digest(data, seed)


def _sealed(message: bytes, key: str = "") -> bytes:
    return _digest(message, key) + message


def _check_digest(data: bytes, key: str = "") -> bytes:
    """The message that `_sealed` was given. Raises ValueError where it is not that message."""
    digest, message = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if digest != _digest(message, key):
        raise ValueError("its digest is of other bytes")
    return message


def _damaged(text: str) -> LayoutError:
    return LayoutError(text, "publish it again")


def _dtype(number: int) -> str:
    name = pb.Dtype.Name(number).removeprefix(_PREFIX).lower()
    numpy_dtype(name)
    return name


def _tensor(layout: pb.TensorLayout, regions: list[RegionRef]) -> TensorShards:
    dtype = _dtype(layout.dtype)
    item_bytes = numpy_dtype(dtype).itemsize
    shape = tuple(layout.shape)
    shards: list[ShardRef] = []
    for entry in layout.shards:
        box = Box(tuple(entry.box.start), tuple(entry.box.stop))
        strides = tuple(entry.strides_bytes) or row_major(box.shape, item_bytes)
        region = regions[entry.region]
        if len(box.start) != len(shape) or len(strides) != len(shape):
            raise _damaged(f"{layout.name}: box {box} in shape {shape}")
        if not _apart(box.shape, strides, item_bytes):
            raise _damaged(f"{layout.name}: strides {strides} let elements of box {box} overlap")
        last = entry.offset_bytes + item_bytes
        last += sum((n - 1) * stride for n, stride in zip(box.shape, strides, strict=True))
        if box.size and last > region.size_bytes:
            raise _damaged(f"{layout.name}: box {box} ends at byte {last} of a region of {region.size_bytes}")
        shards.append(ShardRef(box, region, entry.offset_bytes, strides))
    return TensorShards(layout.name, dtype, shape, tuple(shards))


def _apart(extent: Sequence[int], strides: Sequence[int], item_bytes: int) -> bool:
    """Returns whether each dimension's stride steps over all that the dimensions of smaller strides span."""
    span = item_bytes
    for stride, length in sorted(zip(strides, extent, strict=True)):
        if length > 1:
            if stride < span:
                return False
            span += (length - 1) * stride
    return True


def _check_region(region: RegionRef) -> None:
    blocks = -(-region.size_bytes // region.checksum_block_bytes) if region.checksum_block_bytes else 0
    if max(region.offset_bytes, region.size_bytes) > _MOST_BYTES or region.slot >= 1 << 32:
        raise ValueError(f"a region of {region.size_bytes} bytes at {region.offset_bytes}")
    if region.checksums and len(region.checksums) != blocks:
        raise ValueError(f"{len(region.checksums)} digests for {blocks} blocks")


def _add_class(message: pb.LayoutDescriptor, shard: ClassShard, region: int) -> None:
    tensor_class, layout = shard.tensors, shard.tensors.layout
    entry = message.classes.add(
        template=tensor_class.template,
        dtype=pb.Dtype.Value(_PREFIX + tensor_class.dtype.upper()),
        shape=layout.shape,
        stack=layout.stack,
        mesh_shape=layout.mesh_shape,
        rank=shard.rank,
        region=region,
        offset_bytes=shard.offset_bytes,
        tensor_bytes=shard.tensor_bytes,
    )
    for kind, *numbers in layout.placements:
        values = dict(zip(("dim", "split"), numbers, strict=False))
        entry.placements.add(kind=pb.PlacementKind.Value(_KIND + str(kind).upper()), **values)


def _class(entry: pb.TensorClass, regions: list[RegionRef]) -> ClassShard:
    tensors, rank, number, offset_bytes, tensor_bytes, stop_bytes = _known_class(entry.SerializeToString())
    region = regions[number]
    if stop_bytes > region.size_bytes:
        text = f"ends at byte {stop_bytes} of a region of {region.size_bytes}"
        raise _damaged(f"{tensors.template}: {text}")
    return ClassShard(tensors, rank, region, offset_bytes, tensor_bytes)


@lru_cache(maxsize=4096)
def _known_class(data: bytes) -> tuple[TensorClass, int, int, int, int, int]:
    """A class entry, decoded: (class, rank, number of its region, offset, bytes from each tensor to the next,
    where the last one ends). Cached: entries are the same for every version.
    """
    entry = pb.TensorClass.FromString(data)
    placements = tuple((placement.kind, placement.dim, placement.split) for placement in entry.placements)
    layout = tuple(entry.shape), entry.stack, tuple(entry.mesh_shape), placements
    tensor_class = _tensor_class(entry.template, entry.dtype, *layout)
    if not entry.rank < len(tensor_class.layout.owners):
        raise _damaged(f"{entry.template}: rank {entry.rank} of {len(tensor_class.layout.owners)}")
    count, size_bytes = tensor_class.extent(entry.rank)
    if count > 1 and entry.tensor_bytes < size_bytes:
        raise _damaged(f"{entry.template}: tensors of {size_bytes} bytes, {entry.tensor_bytes} apart")
    stop = entry.offset_bytes + (count - 1) * entry.tensor_bytes + size_bytes if count else 0
    return tensor_class, entry.rank, entry.region, entry.offset_bytes, entry.tensor_bytes, stop


@lru_cache(maxsize=4096)
def _tensor_class(
    template: str,
    dtype: int,
    shape: tuple[int, ...],
    stack: int,
    mesh_shape: tuple[int, ...],
    written: tuple[tuple[int, int, int], ...],
) -> TensorClass:
    """A class; the same object for all ranks, so that classes compare fast."""
    ranks = prod(mesh_shape)
    if ranks > _MOST_RANKS:
        raise _damaged(f"{template}: a mesh of {ranks} ranks")
    if prod(shape) > _MOST_BYTES or any(split > _MOST_RANKS for _, _, split in written):
        raise _damaged(f"{template}: shape {shape}, placements {written}")
    placements: list[Placement] = []
    for number, dim, split in written:
        kind = pb.PlacementKind.Name(number).removeprefix(_KIND).lower()
        match kind:
            case "replicate":
                placements.append((kind,))
            case "strided_shard":
                placements.append((kind, dim, split))
            case _:
                placements.append((kind, dim))
    layout = MeshLayout(shape, mesh_shape, tuple(placements), _ranks(ranks), stack)
    return TensorClass(template, _dtype(dtype), layout)


@lru_cache(maxsize=16)
def _ranks(count: int) -> tuple[str, ...]:
    """Names of a mesh's owners: the same object each time, so that layouts compare fast."""
    return tuple(map(str, range(count)))
