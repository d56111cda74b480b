"""Plans for classes of tensors on meshes against a numpy oracle: every element once, replicas shared."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.dispatch.layout.box import Box
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.plan.balance import deal, fill
from earl.dispatch.plan.boxes import plan
from earl.dispatch.plan.class_plan import Want, plan_reads
from earl.errors import LayoutError, LayoutGap
from tests.support.layouts import box_runs, copies_of, layout_of

some = settings(max_examples=60)


@st.composite
def layouts(draw, shape: tuple[int, ...], stack: int, owners: int | None = None) -> MeshLayout:
    mesh = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple))
    dims = st.integers(0, len(shape) - 1)
    kinds = [
        st.just(("replicate",)),
        dims.map(lambda dim: ("shard", dim)),
        st.tuples(st.just("strided_shard"), dims, st.integers(1, 3)),
        dims.map(lambda dim: ("zigzag", dim)),
    ]
    placements = tuple(draw(st.one_of(kinds)) for _ in mesh)
    return MeshLayout(shape, mesh, placements, tuple(f"o{i}" for i in range(prod(mesh))), stack)


def indices(runs) -> list[list[int]]:
    return [[i for a, b in one for i in range(a, b)] for one in runs]


def held_by(layout: MeshLayout, whole: np.ndarray, runs) -> dict[int, np.ndarray]:
    """Local arrays by tensor number, as the owner of these runs holds them."""
    at = indices(runs)
    numbers = np.arange(layout.tensors).reshape(layout.shape[: layout.stack])
    return {
        int(numbers[lead]): whole[lead][np.ix_(*at[layout.stack :])]
        for lead in np.ndindex(*layout.shape[: layout.stack])
        if all(i in one for i, one in zip(lead, at, strict=False))
    }


@some
@given(st.data())
def test_every_element_is_copied_once_from_an_owner_that_holds_it(data):
    stack = data.draw(st.integers(0, 2))
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=stack + 1, max_size=stack + 2)))
    source, target = data.draw(layouts(shape, stack)), data.draw(layouts(shape, stack))
    whole = np.arange(prod(shape)).reshape(shape)
    rank = data.draw(st.integers(0, len(target.owners) - 1))
    runs = target.runs(rank)
    cost = np.array([float(data.draw(st.integers(0, 1))) for _ in source.owners])
    reads = plan_reads([Want(source, runs, 2)], cost)
    into = {n: np.full(a.shape, -1) for n, a in held_by(target, whole, runs).items()}
    times = {n: np.zeros(a.shape, int) for n, a in into.items()}
    local = {peer: held_by(source, whole, source.runs(peer)) for peer in range(len(source.owners))}
    for block, t, row in copies_of(reads.blocks):
        number, peer = int(block.tensors[t]), int(block.peer[row])
        to = tuple(slice(a, a + n) for a, n in zip(block.target[row], block.extent[row], strict=True))
        of = tuple(slice(a, a + n) for a, n in zip(block.source[row], block.extent[row], strict=True))
        into[number][to] = local[peer][number][of]
        times[number][to] += 1
    for number, array in held_by(target, whole, runs).items():
        np.testing.assert_array_equal(into[number], array)
        assert (times[number] == 1).all()
    assert reads.size_bytes == reads.loads.sum() == 2 * sum(a.size for a in into.values())


@some
@given(st.data())
def test_replicas_share_fairly(data):
    """A class on `replicas` × 2 owners: no replica of a part gets more than its share plus one copy."""
    replicas, tensors = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 9))
    rows, width = data.draw(st.integers(2, 12)), data.draw(st.integers(1, 3))
    pieces = data.draw(st.integers(1, 3))
    owners = tuple(f"o{i}" for i in range(2 * replicas))
    placements = (("replicate",), ("strided_shard", 1, pieces))
    source = MeshLayout((tensors, rows, width), (replicas, 2), placements, owners, 1)
    reads = plan_reads([Want(source, box_runs(Box.whole(source.shape)), 4)])
    longest = 4 * max(int(block.elements.max()) for block in reads.blocks)
    assert reads.size_bytes == 4 * tensors * rows * width
    by_part = reads.loads.reshape(replicas, 2)
    for part in range(2):
        share = by_part[:, part].sum() / replicas
        assert by_part[:, part].max() <= share + longest


def test_bytes_planned_before_count():
    source = MeshLayout((6, 10), (3,), (("replicate",),), ("a", "b", "c"), 1)
    want = Want(source, box_runs(Box.whole(source.shape)), 1)
    reads = plan_reads([want], loads=np.array([0, 30, 1000]))
    assert reads.loads.tolist() == [40, 50, 1000] or reads.loads.tolist() == [50, 40, 1000]
    near = plan_reads([want], cost=np.array([1.0, 0.0, 1.0]), loads=np.array([0, 30, 1000]))
    assert near.loads.tolist() == [0, 90, 1000]


@some
@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
    st.lists(st.integers(0, 99), min_size=1, max_size=5),
)
def test_filling_levels_and_dealing_follows(sizes, loads):
    loads = np.array(loads)
    shares = fill(loads, sum(sizes))
    after = loads + shares
    assert shares.sum() == sum(sizes) and (shares >= 0).all()
    assert after[shares > 0].max() - after.min() <= 1
    chosen = deal(np.array(sizes), loads)
    got = np.bincount(chosen, sizes, len(loads))
    assert (got <= shares + max(sizes)).all() and (got[shares == 0] == 0).all()


def test_one_number_for_each_owner():
    source = MeshLayout((8,), (2,), (("shard", 0),), ("a", "b"))
    want = Want(source, (((0, 8),),), 4)
    with pytest.raises(LayoutError, match=r"cost of shape \(1,\) for 2"):
        plan_reads([want], np.zeros(1))
    with pytest.raises(LayoutError, match=r"loads of shape \(3,\) for 2"):
        plan_reads([want], loads=np.zeros(3, int))


def test_neighbours_are_joined():
    """dp 4 → dp 2 by rows: two copies; whole tensors held alike: one."""
    four = MeshLayout((5, 8, 3), (4,), (("shard", 1),), ("a", "b", "c", "d"), 1)
    two = MeshLayout((5, 8, 3), (2,), (("shard", 1),), ("a", "b"), 1)
    reads = plan_reads([Want(four, two.runs(1), 1)])
    assert [block.peer.tolist() for block in reads.blocks] == [[2, 3]] and reads.copies == 10
    strided = MeshLayout((8,), (2, 2), (("strided_shard", 0, 2), ("shard", 0)), ("a", "b", "c", "d"))
    reads = plan_reads([Want(strided, (((0, 8),),), 1)])
    assert [block.peer.tolist() for block in reads.blocks] == [[0, 2, 1, 3]]


def test_what_lies_alike_on_both_sides_is_one_copy():
    """The same strided shard, whose ranges are apart in the tensor, but neither here nor there."""
    layout = MeshLayout((16,), (2, 2), (("strided_shard", 0, 4), ("replicate",)), tuple("abcd"))
    reads = plan_reads([Want(layout, layout.runs(2), 1)], np.array([1.0, 1.0, 1.0, 0.0]))
    (block,) = reads.blocks
    assert (block.peer.tolist(), block.extent.tolist()) == ([3], [[8]])
    with pytest.raises(LayoutGap, match=r"\[2:4\]"):
        plan_reads([Want(layout, layout.runs(2), 1)], np.array([0, 0, np.inf, np.inf]))


def test_agrees_with_the_plan_of_spelled_out_boxes():
    source = MeshLayout((2, 12, 6), (3, 2), (("shard", 1), ("shard", 2)), tuple("abcdef"), 1)
    reads = plan_reads([Want(source, box_runs(Box((1, 2, 1), (2, 9, 5))), 4)])
    spelled = plan(layout_of(source, "w", "float32", tensor=1), Box((2, 1), (9, 5)))
    assert reads.copies == len(spelled)
    assert sorted(reads.blocks[0].peer.tolist()) == sorted(copy.shard_index for copy in spelled)


def test_a_gap_names_the_box():
    source = MeshLayout((2, 8, 6), (2, 2), (("replicate",), ("shard", 1)), tuple("abcd"), 1)
    want = Want(source, box_runs(Box.whole(source.shape)), 4)
    assert plan_reads([want], np.array([0, np.inf, 0, 0])).loads[1] == 0
    with pytest.raises(LayoutGap, match=r"\[4:8, 0:6\].*tensor 0.*belongs to b, d"):
        plan_reads([want], np.array([0, np.inf, 0, np.inf]))


def test_ranges_outside_the_shape_are_refused():
    source = MeshLayout((8,), (2,), (("shard", 0),), ("a", "b"))
    with pytest.raises(LayoutError, match="9"):
        plan_reads([Want(source, (((0, 9),),), 4)])
    with pytest.raises(LayoutError, match=r"2 dimensions of shape \(8,\)"):
        plan_reads([Want(source, (((0, 8),), ((0, 1),)), 4)])
    assert plan_reads([Want(source, ((),), 4)]).copies == 0
    assert plan_reads([]).size_bytes == 0
