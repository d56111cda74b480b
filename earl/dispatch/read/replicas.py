"""Refuses owners that publish the same arrays with different values. Pure.

A box that several owners hold is read from any of them. Where two owners publish the same arrays at the same
places of their regions, as replicas do, the digests of their regions must be equal. Replicas that publish
different sets of arrays are not compared: no digest of either covers just what both hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from earl.dispatch.describe.descriptor import Descriptor, only_region
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.describe.regions import RegionRef
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import Placement
from earl.dispatch.memory.allocator import rounded
from earl.errors import LayoutError


def refuse_disagreement(descriptors: Sequence[Descriptor]) -> None:
    """Raises LayoutError where owners hold the same arrays in different states."""
    if len(descriptors) < 2:
        return
    alike: dict[Any, list[tuple[Descriptor, RegionRef]]] = {}
    for descriptor in descriptors:
        region = only_region(descriptor)
        if region is not None and region.checksums:
            alike.setdefault(_form(descriptor, region), []).append((descriptor, region))
    for group in alike.values():
        if len(group) < 2:
            continue
        first: dict[Any, tuple[Descriptor, RegionRef]] = {}
        for descriptor, region in group:
            other = first.setdefault(_arrays(descriptor), (descriptor, region))
            _compare(other, (descriptor, region))


def _compare(first: tuple[Descriptor, RegionRef], second: tuple[Descriptor, RegionRef]) -> None:
    (descriptor, region), (another, its_region) = first, second
    size = region.checksum_block_bytes
    end = max(stop for _, _, stop in _places(descriptor))
    blocks = len(region.checksums) if end >= region.size_bytes else end // size
    for block in range(blocks):
        if region.checksums[block] != its_region.checksums[block]:
            low, high = block * size, (block + 1) * size
            names = [name for name, start, stop in _places(descriptor) if start < high and low < stop]
            raise LayoutError(
                f"{descriptor.key} and {another.key} hold different values of the same elements, in "
                f"{', '.join(names[:4])}",
                "let one owner publish them, or see why its replica differs",
            )


def _form(descriptor: Descriptor, region: RegionRef) -> tuple[Any, ...]:
    """Equal for all descriptors of the same arrays, and soon computed."""
    first = (
        descriptor.tensors[0].shards[0].box if descriptor.tensors and descriptor.tensors[0].shards else None
    )
    ranks = tuple(_kept_rank(shard.tensors.layout, shard.rank) for shard in descriptor.classes[:1])
    lengths = len(descriptor.tensors), len(descriptor.classes)
    return region.size_bytes, region.checksum_block_bytes, lengths, first, ranks


def _arrays(descriptor: Descriptor) -> tuple[Any, ...]:
    """The arrays of a descriptor and their places in its region."""
    tensors = tuple(
        (tensor.name, tensor.dtype, tensor.shape, part.box, part.offset_bytes, part.strides_bytes)
        for tensor in descriptor.tensors
        for part in tensor.shards
    )
    classes = tuple(
        (each.tensors, _kept_rank(each.tensors.layout, each.rank), each.offset_bytes, each.tensor_bytes)
        for each in descriptor.classes
    )
    return descriptor.version, tensors, classes


def _places(descriptor: Descriptor) -> Iterator[tuple[str, int, int]]:
    """(name, first byte in the region, one past the last) of each array, with what is kept zero behind it."""
    for tensor in descriptor.tensors:
        for part in tensor.shards:
            size_bytes = rounded(part.box.size * numpy_dtype(tensor.dtype).itemsize)
            yield tensor.name, part.offset_bytes, part.offset_bytes + size_bytes
    for each in descriptor.classes:
        count, _ = each.tensors.extent(each.rank)
        yield each.tensors.template, each.offset_bytes, each.offset_bytes + count * each.tensor_bytes


def _kept_rank(layout: MeshLayout, rank: int) -> int:
    return _first_replica(layout.mesh_shape, layout.placements, rank)


@lru_cache(maxsize=1 << 14)
def _first_replica(mesh_shape: tuple[int, ...], placements: tuple[Placement, ...], rank: int) -> int:
    """The first rank of a mesh that holds what this one holds."""
    first, step = 0, 1
    for count, placement in reversed(list(zip(mesh_shape, placements, strict=True))):
        rank, index = divmod(rank, count)
        first += 0 if placement[0] == "replicate" else index * step
        step *= count
    return first
