"""Pieces against numpy: whatever the strides, the same elements arrive, each once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.dispatch.describe.pieces import Pieces, coalesce, flat_bytes, join_pieces, most_blocks
from earl.dispatch.describe.regions import ArenaRef, RegionRef, Regions
from earl.errors import LayoutError

ARENA = ArenaRef("owner", 1, "/nowhere", 1, 1 << 20, "", "cpu", "host")


def region(size_bytes: int, checksums: tuple[int, ...] = (), block_bytes: int = 1 << 20) -> RegionRef:
    return RegionRef(ARENA, 0, 1, 0, size_bytes, checksums, block_bytes)


def copied(source: np.ndarray, pieces: Pieces) -> None:
    """Carry pieces out byte by byte; every target byte at most once."""
    written = [np.zeros(len(buffer), bool) for buffer in pieces.buffers]
    for i in range(len(pieces)):
        buffer = pieces.buffers[pieces.buffer[i]]
        for row in range(int(pieces.rows[i])):
            first = int(pieces.offset[i] + row * pieces.stride[i])
            to = int(pieces.target_offset[i] + row * pieces.target_stride[i])
            run = int(pieces.run[i])
            assert not written[pieces.buffer[i]][to : to + run].any()
            written[pieces.buffer[i]][to : to + run] = True
            buffer[to : to + run] = source[first : first + run]


def pieces_of(shape, source_strides, target: np.ndarray, offset: int = 0) -> Pieces:
    strips = coalesce(
        np.array([offset]),
        np.array([0]),
        np.array([shape], np.int64).reshape(1, len(shape)),
        np.array(source_strides, np.int64),
        np.array(target.strides, np.int64),
        target.itemsize,
    )
    count = len(strips.copy)
    return Pieces(
        Regions.of([region(1 << 20)]),
        np.zeros(count, np.int32),
        strips.offset,
        strips.rows,
        strips.run,
        strips.stride,
        (flat_bytes(target),),
        np.zeros(count, np.int32),
        strips.target_offset,
        strips.target_stride,
    )


@st.composite
def strided(draw):
    """(source array over flat bytes, view of it, target view) of one shape."""
    dims = draw(st.integers(0, 4))
    dtype = np.dtype(draw(st.sampled_from(["u1", "i2", "f4", "f8"])))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(dims))
    views = []
    for seed in (1, 2):
        whole = tuple(n * draw(st.integers(1, 3)) + draw(st.integers(0, 2)) for n in shape)
        size = int(np.prod(whole, dtype=np.int64))
        base = np.random.default_rng(seed).integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype)
        base = base.reshape(whole)
        steps = (max(1, m // n) for m, n in zip(whole, shape, strict=True))
        view = base[(..., *(slice(0, None, step) for step in steps))]
        views.append(view[(..., *(slice(0, n) for n in shape))])
    return views[0], views[1]


@settings(max_examples=150)
@given(strided(), st.integers(1, 64))
def test_any_strided_copy_is_pieces_and_so_are_its_parts(case, limit_bytes):
    source, target = case
    expected = source.copy()
    memory = np.array(flat_bytes(source))
    whole = pieces_of(source.shape, source.strides, target)
    assert whole.size_bytes == target.nbytes
    for parts in ([whole], list(whole.split(limit_bytes)), [whole.split_rows(np.ones_like(whole.rows))]):
        target[...] = 0
        for part in parts:
            copied(memory, part)
        np.testing.assert_array_equal(target, expected)
    assert all(part.size_bytes <= limit_bytes for part in whole.split(limit_bytes))


@pytest.mark.parametrize(
    ("shape", "strides", "pieces", "rows"),
    [
        ((4, 8), (64, 8), 1, 1),  # contiguous: one run
        ((4, 8), (128, 8), 1, 4),  # rows of a wider matrix
        ((2, 4, 8), (512, 128, 8), 1, 8),  # of a wider tensor: rows all the same
        ((2, 4, 8), (1024, 128, 8), 2, 4),  # rows of part of a plane
        ((), (), 1, 1),
        ((3, 0), (8, 8), 0, 0),
    ],
)
def test_copies_become_the_fewest_pieces(shape, strides, pieces, rows):
    made = pieces_of(shape, strides, np.zeros(shape, np.float64))
    assert len(made) == pieces
    assert made.rows.tolist() == [rows] * pieces


def test_blocks_are_those_that_the_bytes_touch():
    target = np.zeros((3, 4), np.uint8)
    made = pieces_of((3, 4), (30, 1), target, offset=18)
    made = Pieces(
        **{name: getattr(made, name) for name in Pieces.__slots__ if name != "regions"},
        regions=Regions.of([region(100, tuple(range(10)), 10)]),
    )
    assert made.stop.tolist() == [82]
    assert made.blocks()[:, 1].tolist() == [1, 2, 4, 5, 7, 8]
    assert made.regions.checksum(0, 8) == 8
    with pytest.raises(LayoutError):
        made.regions.checksum(0, 10)


def test_pieces_of_several_reads_are_joined():
    memory = np.arange(100, dtype=np.uint8)
    first, second = np.zeros(4, np.uint8), np.zeros((2, 3), np.uint8)
    other = replace(pieces_of((2, 3), (20, 1), second, 50), regions=Regions.of([replace(region(99), slot=1)]))
    both = join_pieces([pieces_of((4,), (1,), first, 10), other])
    assert (len(both.regions), len(both.buffers)) == (2, 2)
    assert both.region.tolist() == [0, 1]
    copied(memory, both)
    assert first.tolist() == [10, 11, 12, 13]
    assert second.tolist() == [[50, 51, 52], [70, 71, 72]]


def test_a_target_that_runs_backwards_is_refused():
    with pytest.raises(LayoutError, match="positive strides"):
        flat_bytes(np.zeros(4)[::-1])
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    with pytest.raises(LayoutError, match="writable"):
        flat_bytes(frozen)


def test_blocks_between_runs_that_are_far_apart_are_not_touched():
    target = np.zeros((3, 4), np.uint8)
    made = pieces_of((3, 4), (300_000, 1), target, offset=5)
    made = replace(made, regions=Regions.of([region(1 << 20, tuple(range(11)), 100_000)]))
    assert made.blocks()[:, 1].tolist() == [0, 3, 6]
    table = np.stack([made.offset, made.rows, made.run, made.stride], axis=1)
    assert most_blocks(table, 100_000).tolist() == [6]


def test_joined_pieces_name_a_region_once():
    shared = Regions.of([region(100, (7,), 128)])
    parts = [replace(pieces_of((4,), (1,), np.zeros(4, np.uint8)), regions=shared) for _ in range(3)]
    both = join_pieces(parts)
    assert (len(both.regions), both.region.tolist(), both.regions.checksum(0, 0)) == (1, [0, 0, 0], 7)
