"""Descriptors as bytes: whole after a round trip, refused when anything of them was changed."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.dispatch.describe.descriptor import Descriptor, ShardRef, TensorShards
from earl.dispatch.describe.regions import ArenaRef, RegionRef
from earl.dispatch.layout.box import Box
from earl.dispatch.registry import codec
from earl.errors import LayoutError

ARENA = ArenaRef("o", 3, "/dev/shm/x", 4, 1 << 20, "127.0.0.1:1", "cpu", "host", file_system=23)
KEY, NAME = "trajectories/o/3", "7/1"


def sample(strides: tuple[int, ...] = (16, 4)) -> Descriptor:
    region = RegionRef(ARENA, 5, 7, 4096, 640, (1, (1 << 64) - 1), 512)
    shard = ShardRef(Box((0, 0), (10, 4)), region, 0, strides)
    column = TensorShards("tokens", "int32", (100,), (ShardRef(Box((3,), (9,)), region, 320, (4,)),))
    return Descriptor("weights/7/o", 7, (TensorShards("w", "float32", (20, 4), (shard,)), column))


def records() -> tuple[bytes, bytes]:
    """Head and record of one sequence of 10 rows."""
    head = codec.encode_head(KEY, ARENA, (("tokens", "int32"), ("mask", "bool")))
    return head, codec.encode_record(f"{KEY}#{NAME}", 10, RegionRef(ARENA, 5, 7, 4096, 128, (17,)))


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """Other bytes: some replaced, left out, inserted, or exchanged with others."""
    at, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
    junk = draw(st.one_of(st.binary(max_size=12), st.just(data[at:end][::-1]), st.just(data)))
    made = data[:at] + junk + data[draw(st.sampled_from([at, end, at + len(junk)])) :]
    return made if made != data else data[:at] + bytes([*data[at : at + 1], 0])[:1] + data[at:] + b"\0"


@pytest.mark.parametrize("strides", [(16, 4), (64, 4)])
def test_descriptors_survive_their_bytes(strides: tuple[int, ...]):
    assert codec.decode(codec.encode(sample(strides))) == sample(strides)


@settings(max_examples=400)
@given(changed(codec.encode(sample())))
def test_a_descriptor_that_was_changed_is_refused(data: bytes):
    with pytest.raises(LayoutError, match="damaged"):
        codec.decode(data)


def test_sequences_survive_their_bytes():
    head, record = records()
    held = codec.decode_sequences(KEY, head, [NAME], [record])
    assert (held.arena, held.rows.tolist(), held.regions.slot.tolist()) == (ARENA, [10], [5])
    assert held.regions.checksums.tolist() == [17]


@settings(max_examples=200)
@given(
    st.one_of(
        st.tuples(changed(records()[0]), st.just(records()[1])),
        st.tuples(st.just(records()[0]), changed(records()[1])),
    )
)
def test_a_sequence_that_was_changed_is_refused(parts: tuple[bytes, bytes]):
    with pytest.raises(LayoutError, match="damaged"):
        codec.decode_sequences(KEY, parts[0], [NAME], [parts[1]])


@pytest.mark.parametrize("key, name", [(KEY, "7/2"), ("trajectories/other/3", NAME)])
def test_a_sequence_is_taken_for_no_other(key: str, name: str):
    head, record = records()
    with pytest.raises(LayoutError, match="damaged"):
        codec.decode_sequences(key, head, [name], [record])


def test_a_shard_past_its_region_is_refused():
    with pytest.raises(LayoutError, match="region of 640"):
        codec.decode(codec.encode(sample((128, 4))))


@pytest.mark.parametrize("strides", [(16, 0), (0, 4), (0, 0), (12, 4), (4, 4), (16, 2)])
def test_elements_that_overlap_are_refused(strides: tuple[int, ...]):
    with pytest.raises(LayoutError, match="overlap"):
        codec.decode(codec.encode(sample(strides)))


def test_strides_of_any_order_that_keep_elements_apart_are_read():
    column_major = sample((4, 40))
    assert codec.decode(codec.encode(column_major)) == column_major
    one_row = dataclasses.replace(
        sample().tensors[0].shards[0], box=Box((4, 0), (5, 4)), strides_bytes=(0, 4)
    )
    tensor = dataclasses.replace(sample().tensors[0], shards=(one_row,))
    assert codec.decode(codec.encode(dataclasses.replace(sample(), tensors=(tensor,)))).tensors == (tensor,)
