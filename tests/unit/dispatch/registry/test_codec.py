"""Descriptors as bytes: whole after a round trip, refused or harmless when damaged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.dispatch.describe.descriptor import Descriptor, ShardRef, TensorShards
from earl.dispatch.describe.regions import ArenaRef, RegionRef
from earl.dispatch.layout.box import Box
from earl.dispatch.registry import codec
from earl.errors import LayoutError


def sample(strides: tuple[int, ...] = (16, 4)) -> Descriptor:
    arena = ArenaRef("o", 3, "/dev/shm/x", 4, 1 << 20, "127.0.0.1:1", "cpu", "host")
    region = RegionRef(arena, 5, 7, 4096, 640, (1, (1 << 64) - 1), 512)
    shard = ShardRef(Box((0, 0), (10, 4)), region, 0, strides)
    column = TensorShards("tokens", "int32", (100,), (ShardRef(Box((3,), (9,)), region, 320, (4,)),))
    return Descriptor("weights/7/o", 7, (TensorShards("w", "float32", (20, 4), (shard,)), column))


@pytest.mark.parametrize("strides", [(16, 4), (64, 4)])
def test_descriptors_survive_their_bytes(strides: tuple[int, ...]):
    assert codec.decode(codec.encode(sample(strides))) == sample(strides)


@settings(max_examples=300)
@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
def test_damaged_descriptors_are_refused_or_harmless(at: int, junk: bytes):
    data = bytearray(codec.encode(sample()))
    at %= len(data)
    data[at : at + len(junk)] = junk
    try:
        codec.decode(bytes(data))
    except LayoutError:
        pass


def test_a_shard_past_its_region_is_refused():
    with pytest.raises(LayoutError, match="region of 640"):
        codec.decode(codec.encode(sample((128, 4))))
