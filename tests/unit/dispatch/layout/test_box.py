"""Layout algebra and planner against a numpy oracle: every element once, from a shard that holds it."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.dispatch.layout.box import Box, Layout, ShardBox, chunk_range
from earl.dispatch.layout.placements import placement_boxes
from earl.dispatch.plan.boxes import join, plan
from earl.errors import LayoutError, LayoutGap, LayoutOverlap

many = settings(max_examples=100)

shapes = st.lists(st.integers(0, 9), min_size=0, max_size=3).map(tuple)


@st.composite
def boxes(draw, shape: tuple[int, ...]) -> Box:
    ends = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return Box(tuple(a for a, _ in ends), tuple(b for _, b in ends))


@st.composite
def partitions(draw, shape: tuple[int, ...]) -> list[Box]:
    """Cut the whole at random planes, again and again: disjoint boxes that cover it."""
    parts = [Box.whole(shape)]
    for _ in range(draw(st.integers(0, 5)) if shape else 0):
        box = parts.pop(draw(st.integers(0, len(parts) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(box.start[dim], box.stop[dim]))
        parts.append(Box(box.start, (*box.stop[:dim], at, *box.stop[dim + 1 :])))
        parts.append(Box((*box.start[:dim], at, *box.start[dim + 1 :]), box.stop))
    return parts


def layout_of(shape: tuple[int, ...], parts: list[Box]) -> Layout:
    return Layout("t", "int64", shape, tuple(ShardBox(f"o{i}", box) for i, box in enumerate(parts)))


def mask(shape: tuple[int, ...], parts: list[Box]) -> np.ndarray:
    """Returns how many of the boxes hold each element."""
    counts = np.zeros(shape, np.int64)
    for box in parts:
        counts[box.slices()] += 1
    return counts


@many
@given(st.data())
def test_plan_fills_every_element_once_with_the_right_one(data):
    shape = data.draw(shapes)
    whole = np.arange(prod(shape), dtype=np.int64).reshape(shape)
    parts = data.draw(partitions(shape))
    replicas = data.draw(st.lists(boxes(shape), max_size=3))
    layout = layout_of(shape, parts + replicas)
    costs = {s.owner: float(data.draw(st.integers(0, 2))) for s in layout.shards}
    wanted = data.draw(boxes(shape))
    into = np.full(wanted.shape, -1, np.int64)
    times = np.zeros(wanted.shape, np.int64)
    for copy in plan(layout, wanted, costs):
        assert copy.source.shape == copy.target.shape and copy.source.size
        local = whole[layout.shards[copy.shard_index].box.slices()]
        into[copy.target.slices()] = local[copy.source.slices()]
        times[copy.target.slices()] += 1
    np.testing.assert_array_equal(into, whole[wanted.slices()])
    assert (times == 1).all()


@many
@given(st.data())
def test_plan_prefers_the_cheapest_owner_that_holds_an_element(data):
    shape = data.draw(shapes)
    parts = data.draw(partitions(shape)) + data.draw(st.lists(boxes(shape), max_size=3))
    layout = layout_of(shape, parts)
    costs = {s.owner: float(data.draw(st.integers(0, 3))) for s in layout.shards}
    cheapest = np.full(shape, np.inf)
    for shard in layout.shards:
        view = cheapest[(..., *shard.box.slices())]
        np.minimum(view, costs[shard.owner], out=view)
    for copy in plan(layout, Box.whole(shape), costs):
        assert (cheapest[copy.target.slices()] == costs[layout.shards[copy.shard_index].owner]).all()


def test_of_equally_near_replicas_the_least_loaded_serves():
    layout = layout_of((4,), [Box((0,), (4,))] * 3)
    assert [copy.shard_index for copy in plan(layout, Box((0,), (4,)), {"o2": 1.0}, {"o0": 9, "o1": 8})] == [
        1
    ]


@many
@given(st.data())
def test_a_gap_names_a_box_that_nobody_holds(data):
    shape = data.draw(shapes.filter(lambda s: prod(s) > 0))
    parts = data.draw(st.lists(boxes(shape), max_size=4))
    layout = layout_of(shape, parts)
    covered = mask(shape, parts) > 0
    if covered.all():
        layout.validate(replicas=True)
        plan(layout, Box.whole(shape))
        return
    with pytest.raises(LayoutGap):
        layout.validate(replicas=True)
    with pytest.raises(LayoutGap) as caught:
        plan(layout, Box.whole(shape))
    named = caught.value.message.split(" holds ")[1].split(" of ")[0]
    ranges = [tuple(map(int, part.split(":"))) for part in named.strip("[]").split(", ") if part]
    missing = Box(tuple(a for a, _ in ranges), tuple(b for _, b in ranges))
    assert missing.size and not covered[missing.slices()].any()


@many
@given(st.data())
def test_validate_accepts_partitions_and_refuses_overlap(data):
    shape = data.draw(shapes)
    parts = data.draw(partitions(shape))
    layout_of(shape, parts).validate()
    extra = data.draw(boxes(shape))
    if extra.size:
        with pytest.raises(LayoutOverlap):
            layout_of(shape, [*parts, extra]).validate()
        layout_of(shape, [*parts, extra]).validate(replicas=True)


@many
@given(st.data())
def test_subtract_and_intersect_agree_with_masks(data):
    shape = data.draw(shapes)
    a, b = data.draw(boxes(shape)), data.draw(boxes(shape))
    common = a.intersect(b)
    both = (mask(shape, [a]) > 0) & (mask(shape, [b]) > 0)
    np.testing.assert_array_equal(mask(shape, [common] if common else []) > 0, both)
    np.testing.assert_array_equal(
        mask(shape, a.subtract(b)), (mask(shape, [a]) > 0) & ~(mask(shape, [b]) > 0)
    )
    assert a.contains(b) == (b.size == 0 or common == b)


@many
@given(st.data())
def test_join_keeps_the_elements_and_makes_no_more_boxes(data):
    shape = data.draw(shapes)
    parts = [part for part in data.draw(partitions(shape)) if part.size]
    joined = join(parts)
    np.testing.assert_array_equal(mask(shape, joined), mask(shape, parts))
    assert len(joined) <= len(parts)


def test_contiguous_runs_become_one_copy():
    """The expensive middle replica leaves two pieces of one shard, rows split in four become one run."""
    rows = [Box((i, 0), (i + 1, 8)) for i in range(4)]
    assert join(rows) == [Box((0, 0), (4, 8))]


@many
@given(st.integers(0, 40), st.integers(1, 9))
def test_a_chunk_has_torch_chunks_range(length: int, count: int):
    chunks = torch.arange(length).chunk(count) if length else ()
    for index in range(count):
        expected = chunks[index].tolist() if index < len(chunks) else []
        assert list(range(*chunk_range(length, index, count))) == expected


@many
@given(st.data())
def test_placements_partition_the_tensor(data):
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple))
    mesh = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple))
    placements = [("shard", data.draw(st.integers(0, len(shape) - 1))) for _ in mesh]
    everywhere = [
        box for at in product(*map(range, mesh)) for box in placement_boxes(shape, mesh, placements, at)
    ]
    assert (mask(shape, everywhere) == 1).all()
    replicated = placement_boxes(shape, mesh, [("replicate",)] * len(mesh), (0,) * len(mesh))
    assert replicated == (Box.whole(shape),)


@pytest.mark.parametrize("length, dp, tp", [(16, 2, 2), (24, 4, 2), (24, 2, 4), (8, 8, 1)])
def test_fsdp_over_tensor_parallel_is_tp_first(length: int, dp: int, tp: int):
    """FSDP2 shards what tensor parallelism left: _StridedShard(dp) then Shard(tp) on one dimension."""
    rows = torch.arange(length)
    for i, j in product(range(dp), range(tp)):
        expected = rows.chunk(tp)[j].chunk(dp)[i].tolist()
        found = placement_boxes((length,), (dp, tp), [("strided_shard", 0, tp), ("shard", 0)], (i, j))
        assert [row for box in found for row in range(box.start[0], box.stop[0])] == expected


def test_bad_boxes_are_named():
    with pytest.raises(LayoutError, match="3:1"):
        Box((3,), (1,))
    with pytest.raises(LayoutError, match=r"\[0:9\]"):
        plan(layout_of((4,), [Box((0,), (4,))]), Box((0,), (9,)))
    with pytest.raises(LayoutError, match="partial"):
        placement_boxes((4,), (2,), [("partial",)], (0,))


def test_boxes_that_overlap_must_be_equal():
    def layout(*boxes: Box) -> Layout:
        shards = tuple(ShardBox(str(number), box) for number, box in enumerate(boxes))
        return Layout("w", "float32", (8, 8), shards)

    low, high = Box((0, 0), (4, 8)), Box((4, 0), (8, 8))
    layout(low, high, low, Box((3, 3), (3, 8))).refuse_partial_overlap()
    with pytest.raises(LayoutOverlap, match=r"both claim \[3:4, 0:8\]"):
        layout(low, high, Box((3, 0), (8, 8))).refuse_partial_overlap()
