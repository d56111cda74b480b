"""Owners that hold the same arrays: equal digests are replicas, other digests are refused."""

from __future__ import annotations

import pytest

from earl.dispatch.describe.descriptor import Descriptor
from earl.dispatch.describe.regions import CHECKSUM_BLOCK_BYTES, ArenaRef, RegionRef
from earl.dispatch.describe.tensor_classes import ClassShard, TensorClass
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import Placement
from earl.dispatch.read.replicas import refuse_disagreement
from earl.errors import LayoutError

BLOCK = CHECKSUM_BLOCK_BYTES
REPLICATED: tuple[Placement, ...] = (("replicate",),)


def held(
    rank: int, checksums: tuple[int, ...], placements: tuple[Placement, ...] = REPLICATED, size_bytes: int = 0
) -> Descriptor:
    """A rank of two publishes this of three tensors of a block each, or half a block if they are sharded."""
    layout = MeshLayout((3, BLOCK), (2,), placements, ("0", "1"), 1)
    tensors = TensorClass("h.{}.w", "uint8", layout)
    _, part_bytes = tensors.extent(rank)
    arena = ArenaRef(f"o{rank}", 1, "", rank, 1 << 30, "", "cpu", "h")
    region = RegionRef(arena, 0, 1, 4096, size_bytes or 3 * part_bytes, checksums)
    return Descriptor(f"weights/1/{rank}", 1, (), (ClassShard(tensors, rank, region, 0, part_bytes),))


def test_replicas_with_equal_digests_are_read():
    refuse_disagreement([held(0, (1, 2, 3)), held(1, (1, 2, 3))])


def test_replicas_with_other_digests_are_refused():
    with pytest.raises(LayoutError, match=r"weights/1/0 and weights/1/1 hold different .* h\.\{\}\.w"):
        refuse_disagreement([held(0, (1, 2, 3)), held(1, (1, 2, 4))])


def test_what_lies_behind_the_arrays_is_not_compared():
    """A slot may be longer than the version in it."""
    size_bytes = 5 * BLOCK
    refuse_disagreement(
        [held(0, (1, 2, 3, 4, 5), REPLICATED, size_bytes), held(1, (1, 2, 3, 6, 7), REPLICATED, size_bytes)]
    )
    with pytest.raises(LayoutError):
        refuse_disagreement(
            [
                held(0, (1, 2, 3, 4, 5), REPLICATED, size_bytes),
                held(1, (1, 2, 9, 4, 5), REPLICATED, size_bytes),
            ]
        )


def test_owners_of_other_parts_and_of_no_digests_are_not_compared():
    shards: tuple[Placement, ...] = (("shard", 1),)
    refuse_disagreement([held(0, (1, 2), shards), held(1, (3, 4), shards)])
    refuse_disagreement([held(0, ()), held(1, ())])
