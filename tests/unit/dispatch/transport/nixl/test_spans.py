"""Checks that what NIXL reads for pieces equals what a direct copy gives, and which wire it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.dispatch.describe.pieces import Pieces
from earl.dispatch.describe.regions import Regions
from earl.dispatch.memory.digests import region_digests
from earl.dispatch.transport.copying import copy
from earl.dispatch.transport.nixl.agent import rdma_ports, wire_here
from earl.dispatch.transport.nixl.spans import GAP_BYTES, MAX_SPANS, Fetch, fetches, near
from earl.dispatch.transport.nixl.transport import deliver
from earl.errors import ChecksumMismatch, LayoutError

BLOCK = 1 << 10
MEMORY = np.random.default_rng(0).integers(0, 256, 600_000, dtype=np.uint8)


@st.composite
def pieces_of(draw: st.DrawFn) -> Pieces:
    """Up to 30 pieces, of regions that lie apart, some with checksums, each with a target of its own."""
    sizes = draw(st.lists(st.integers(1, 40_000), min_size=1, max_size=6))
    starts = np.cumsum([0, *(size + 64 for size in sizes)])[:-1]
    digests = [
        region_digests(MEMORY[a : a + n], BLOCK) if draw(st.booleans()) else ()
        for a, n in zip(starts, sizes, strict=True)
    ]
    regions = Regions(
        np.arange(len(sizes)),
        np.ones(len(sizes), np.uint64),
        starts.astype(np.int64),
        np.array(sizes, np.int64),
        np.cumsum([0, *map(len, digests)]),
        np.array([one for each in digests for one in each], np.uint64),
        BLOCK,
    )
    rows = []
    at = 0
    for _ in range(draw(st.integers(1, 30))):
        region = draw(st.integers(0, len(sizes) - 1))
        run = draw(st.integers(1, sizes[region]))
        count = draw(st.integers(1, max(1, min(40, sizes[region] // run))))
        stride = run + draw(st.integers(0, (sizes[region] - run * count) // max(count - 1, 1)))
        offset = draw(st.integers(0, sizes[region] - (count - 1) * stride - run))
        rows.append((region, offset, count, run, stride, at))
        at += run * count + 3
    region, offset, count, run, stride, to = np.array(rows, np.int64).T
    buffer = np.zeros(len(rows), np.int32)
    target = (np.zeros(at, np.uint8),)
    return Pieces(regions, region.astype(np.int32), offset, count, run, stride, target, buffer, to, run)


def carried_out(fetch: Fetch) -> np.ndarray:
    """The buffer as it is after its spans were read."""
    return np.concatenate([MEMORY[a : a + n] for a, n in zip(fetch.start, fetch.length, strict=True)])


@given(pieces_of(), st.integers(3 * BLOCK, 20 * BLOCK), st.booleans())
def test_spans_serve_the_pieces_and_nothing_outside_their_regions(pieces: Pieces, limit: int, verify: bool):
    regions = pieces.regions
    wanted = np.zeros_like(pieces.buffers[0])
    copy(MEMORY, replace(pieces, buffers=(wanted,)))
    known: set[tuple[int, int]] = set()
    for fetch in fetches(pieces, limit, verify=verify):
        assert 0 < fetch.size_bytes <= limit and len(fetch.start) <= MAX_SPANS
        for start, length in zip(fetch.start, fetch.length, strict=True):
            inside = (regions.offset_bytes <= start) & (
                start + length <= regions.offset_bytes + regions.size_bytes
            )
            assert inside.any(), "a span leaves its region"
        known |= set(map(tuple, fetch.block.tolist()))
        deliver(fetch, carried_out(fetch), pieces, "test")
    np.testing.assert_array_equal(pieces.buffers[0], wanted)
    checked = regions.verifiable[pieces.region] & verify
    some = pieces.take(checked)
    touched = set(map(tuple, some.split_rows(np.ones(len(some), np.int64)).blocks().tolist()))
    assert touched <= known <= set(map(tuple, some.blocks(between=True).tolist()))


@given(pieces_of(), st.data())
def test_a_byte_flipped_on_the_wire_is_found(pieces: Pieces, data: st.DataObject):
    regions = pieces.regions
    for fetch in fetches(pieces, 20 * BLOCK, verify=True):
        if not len(fetch.block):
            continue
        buffer = carried_out(fetch)
        at = data.draw(st.integers(0, len(buffer) - 1))
        buffer[at] ^= 1
        region, block = fetch.block[np.searchsorted(fetch.stop, at, "right")]
        with pytest.raises(ChecksumMismatch, match=f"block {block} of region {regions.slot[region]} "):
            deliver(fetch, buffer, pieces, "test")


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=50, unique=True))
def test_near_spans_are_read_together(starts: list[int]):
    start = np.sort(np.array(starts)) * 32
    joined, length, at = near(start, np.full(len(start), 32))
    assert (joined[1:] - (joined + length)[:-1] > GAP_BYTES).all()
    places = np.concatenate([np.arange(a, a + n) for a, n in zip(joined, length, strict=True)])
    np.testing.assert_array_equal(places[at], start)


def test_thin_slices_of_one_block_read_it_once():
    """Small tensors in one region are one block, not as many as there are."""
    digests = np.array(region_digests(MEMORY[:BLOCK], BLOCK), np.uint64)
    one, none = np.array([0]), np.zeros(500, np.int64)
    regions = Regions(
        one, np.ones(1, np.uint64), one, np.array([BLOCK]), np.array([0, len(digests)]), digests, BLOCK
    )
    at = np.arange(500)
    ones = np.ones(500, np.int64)
    target = (np.zeros(500, np.uint8),)
    pieces = Pieces(regions, none.astype(np.int32), at, ones, ones, none, target, none, at, none)
    (fetch,) = fetches(pieces, 4 * BLOCK, verify=True)
    assert fetch.size_bytes == BLOCK


def test_blocks_too_large_for_a_buffer_are_refused():
    digests = np.zeros(1, np.uint64)
    one = np.array([0])
    regions = Regions(one, np.ones(1, np.uint64), one, np.array([10]), np.array([0, 1]), digests, BLOCK)
    size = np.array([10])
    pieces = Pieces(regions, one, one, one + 1, size, one, (np.zeros(10, np.uint8),), one, one, one)
    with pytest.raises(LayoutError, match="1024"):
        list(fetches(pieces, 2 * BLOCK, verify=True))


def sysfs(root: Path, **states: str) -> Path:
    for port, state in states.items():
        path = root / port / "ports" / "1"
        path.mkdir(parents=True)
        (path / "state").write_text(state + "\n")
    return root


def test_rdma_is_where_a_port_is_up(tmp_path: Path):
    root = sysfs(tmp_path, mlx5_0="1: DOWN", mlx5_1="4: ACTIVE")
    assert rdma_ports(root) == ["mlx5_1/1"] and wire_here(root) == "rdma"
    assert wire_here(sysfs(tmp_path / "down", mlx5_0="2: INIT")) == "tcp"
    assert wire_here(tmp_path / "none") == "tcp"
