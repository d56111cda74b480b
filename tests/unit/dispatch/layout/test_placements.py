"""Placements against torch's own: what a rank holds, both ways, and what has no layout is refused."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import placement_boxes, placement_runs, split_of
from earl.dispatch.publish.dtensor import from_torch
from earl.errors import LayoutError
from tests.support.layouts import to_torch

some = settings(max_examples=40)


@st.composite
def placed(draw, zigzag: bool = False):
    """(shape, mesh shape, placements) with every kind, uneven lengths and empty parts among them."""
    shape = draw(st.lists(st.integers(1, 11), min_size=1, max_size=3).map(tuple))
    mesh = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple))
    dims = st.integers(0, len(shape) - 1)
    kinds = [
        st.just(("replicate",)),
        dims.map(lambda dim: ("shard", dim)),
        st.tuples(st.just("strided_shard"), dims, st.integers(1, 4)),
    ]
    if zigzag:
        kinds.append(dims.map(lambda dim: ("zigzag", dim)))
    return shape, mesh, tuple(draw(st.one_of(kinds)) for _ in mesh)


def local_by_torch(whole: torch.Tensor, mesh, placements, at) -> torch.Tensor:
    """Returns what torch gives the rank at these coordinates, without any process."""
    for count, placement, index in zip(mesh, to_torch(placements), at, strict=True):
        if not isinstance(placement, Replicate):
            whole = placement._split_tensor(whole, count, with_padding=False)[0][index]
    return whole


def local_by_runs(whole: np.ndarray, runs) -> np.ndarray:
    at = [[i for a, b in one for i in range(a, b)] for one in runs]
    return whole[np.ix_(*at)] if at else whole


@some
@given(placed())
def test_ranks_hold_what_torch_gives_them(case):
    shape, mesh, placements = case
    whole = torch.arange(prod(shape)).reshape(shape)
    for at in product(*map(range, mesh)):
        expected = local_by_torch(whole, mesh, placements, at)
        runs = placement_runs(shape, mesh, placements, at)
        found = local_by_runs(whole.numpy(), runs)
        np.testing.assert_array_equal(found, expected.numpy())
        boxes = placement_boxes(shape, mesh, placements, at)
        assert sum(box.size for box in boxes) == expected.numel()
        size, offset = _compute_local_shape_and_global_offset(shape, mesh, list(at), to_torch(placements))
        assert found.shape == tuple(size)
        if found.size:
            assert boxes[0].start == tuple(offset)


@some
@given(placed(zigzag=True))
def test_splits_say_the_same_for_all_ranks_at_once(case):
    shape, mesh, placements = case
    layout = MeshLayout(shape, mesh, placements, tuple(f"o{i}" for i in range(prod(mesh))))
    for dim, split in enumerate(layout.splits()):
        assert split.start.tolist() == [0, *split.stop[:-1].tolist()] and split.stop[-1] == shape[dim]
    holders = layout.holders()
    for parts in np.ndindex(*holders.shape[:-1]):
        for rank in holders[parts].tolist():
            runs = layout.runs(rank)
            for dim, (split, part) in enumerate(zip(layout.splits(), parts, strict=True)):
                mine = np.flatnonzero(split.part == part)
                mine = mine[np.argsort(split.local[mine])]
                indices = [i for s in mine for i in range(split.start[s], split.stop[s])]
                assert indices == [i for a, b in runs[dim] for i in range(a, b)]


def test_zigzag_pairs_a_front_chunk_with_a_back_one():
    held = [placement_runs((16,), (2,), (("zigzag", 0),), (rank,))[0] for rank in range(2)]
    assert held == [((0, 4), (12, 16)), ((4, 12),)]


def test_experts_are_dealt_in_blocks_and_sharded_inside():
    """8 experts of 6 × 4 over ep 4 × tp 2: rank (1, 1) holds experts 2 and 3, rows 3 to 5 of each."""
    boxes = placement_boxes((8, 6, 4), (4, 2), (("shard", 0), ("shard", 1)), (1, 1))
    assert [str(box) for box in boxes] == ["[2:4, 3:6, 0:4]"]


def test_strided_shards_split_uneven_lengths_as_torch_does():
    """torch's own example: 9 elements, split 2, 4 ranks."""
    rows = [placement_runs((9,), (4,), (("strided_shard", 0, 2),), (i,))[0] for i in range(4)]
    assert [[i for a, b in one for i in range(a, b)] for one in rows] == [[0, 1, 5], [2, 3, 6], [4, 7], [8]]


def test_torch_placements_go_there_and_back():
    ours = (("replicate",), ("shard", 1), ("strided_shard", 0, 2))
    assert from_torch(to_torch(ours), 2) == ours
    assert from_torch([Shard(-1)], 3) == (("shard", 2),)


def test_partial_is_refused_and_says_what_to_do():
    with pytest.raises(LayoutError, match="reduce it first"):
        from_torch([Shard(0), Partial()], 2)
    with pytest.raises(LayoutError, match="reduce it first"):
        MeshLayout((4,), (2,), (("partial",),), ("a", "b"))


def test_what_does_not_fit_is_named():
    with pytest.raises(LayoutError, match="shard"):
        MeshLayout((4,), (2,), (("shard", 1),), ("a", "b"))
    with pytest.raises(LayoutError, match="1 owners"):
        MeshLayout((4,), (2,), (("shard", 0),), ("a",))
    with pytest.raises(LayoutError, match="coordinates"):
        placement_runs((4,), (2,), (("shard", 0),), (2,))
    assert split_of(4, ()).parts == 1
