"""Descriptors to protobuf bytes and back. Decoding validates everything that a reader relies on."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from earl.dispatch.descriptor import (
    ArenaRef,
    Descriptor,
    RegionRef,
    ShardRef,
    TensorShards,
    numpy_dtype,
    row_major,
)
from earl.dispatch.layout import Box
from earl.errors import LayoutError
from earl.v1 import layout_pb2 as pb

_PREFIX = "DTYPE_"


def encode(descriptor: Descriptor) -> bytes:
    """A LayoutDescriptor's bytes; each arena and region appears once."""
    message = pb.LayoutDescriptor(key=descriptor.key, version=descriptor.version)
    arenas: dict[ArenaRef, int] = {}
    regions: dict[int, int] = {}  # by identity: hashing a region hashes all its checksums
    for tensor in descriptor.tensors:
        dtype = pb.Dtype.Value(_PREFIX + tensor.dtype.upper())
        layout = message.tensors.add(name=tensor.name, dtype=dtype, shape=tensor.shape)
        item_bytes = numpy_dtype(tensor.dtype).itemsize
        for shard in tensor.shards:
            region = shard.region
            if id(region) not in regions:
                if region.arena not in arenas:
                    arenas[region.arena] = len(arenas)
                    message.arenas.append(_arena(region.arena))
                regions[id(region)] = len(regions)
                message.regions.append(_region(region, arenas[region.arena]))
            entry = layout.shards.add(region=regions[id(region)], offset_bytes=shard.offset_bytes)
            entry.box.start.extend(shard.box.start)
            entry.box.stop.extend(shard.box.stop)
            if shard.strides_bytes != row_major(shard.box.shape, item_bytes):
                entry.strides_bytes.extend(shard.strides_bytes)
    return message.SerializeToString()


def decode(data: bytes) -> Descriptor:
    """The values of a LayoutDescriptor. Raises LayoutError when it is damaged or inconsistent."""
    message = pb.LayoutDescriptor()
    try:
        message.ParseFromString(data)
        arenas = [
            ArenaRef(a.owner, a.incarnation, a.path, a.nonce, a.size_bytes, a.ucx_address, a.device, a.host)
            for a in message.arenas
        ]
        regions = [
            RegionRef(
                arenas[r.arena],
                r.slot,
                r.generation,
                r.offset_bytes,
                r.size_bytes,
                tuple(r.checksums),
                r.checksum_block_bytes,
            )
            for r in message.regions
        ]
        tensors = tuple(_tensor(layout, regions) for layout in message.tensors)
    except (DecodeError, IndexError, ValueError) as error:
        raise LayoutError(f"damaged descriptor of {len(data)} bytes: {error}", "publish it again") from error
    return Descriptor(message.key, message.version, tensors)


def _tensor(layout: pb.TensorLayout, regions: list[RegionRef]) -> TensorShards:
    dtype = pb.Dtype.Name(layout.dtype).removeprefix(_PREFIX).lower()
    item_bytes = numpy_dtype(dtype).itemsize
    shape = tuple(layout.shape)
    shards: list[ShardRef] = []
    for entry in layout.shards:
        box = Box(tuple(entry.box.start), tuple(entry.box.stop))
        strides = tuple(entry.strides_bytes) or row_major(box.shape, item_bytes)
        region = regions[entry.region]
        if len(box.start) != len(shape) or len(strides) != len(shape):
            raise LayoutError(f"{layout.name}: box {box} in shape {shape}", "publish it again")
        last = entry.offset_bytes + item_bytes
        last += sum((n - 1) * stride for n, stride in zip(box.shape, strides, strict=True))
        if box.size and last > region.size_bytes:
            raise LayoutError(
                f"{layout.name}: box {box} ends at byte {last} of a region of {region.size_bytes}",
                "publish it again",
            )
        shards.append(ShardRef(box, region, entry.offset_bytes, strides))
    return TensorShards(layout.name, dtype, shape, tuple(shards))


def _arena(arena: ArenaRef) -> pb.ArenaRef:
    return pb.ArenaRef(
        owner=arena.owner,
        incarnation=arena.incarnation,
        path=arena.path,
        nonce=arena.nonce,
        size_bytes=arena.size_bytes,
        ucx_address=arena.ucx_address,
        device=arena.device,
        host=arena.host,
    )


def _region(region: RegionRef, arena: int) -> pb.Region:
    return pb.Region(
        arena=arena,
        offset_bytes=region.offset_bytes,
        size_bytes=region.size_bytes,
        generation=region.generation,
        slot=region.slot,
        checksums=region.checksums,
        checksum_block_bytes=region.checksum_block_bytes,
    )
