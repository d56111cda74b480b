"""Checks what ranks send each other as cuts change: all once, replicas in turn, rounds within their bound."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.dispatch.layout.box import Box
from earl.dispatch.layout.placements import Placement, placement_boxes
from earl.dispatch.plan.reshard_plan import Reshard, ReshardPiece, plan_reshard, rounds
from earl.errors import LayoutGap

some = settings(max_examples=60)
EMPTY = Box((0, 0), (0, 0))


@st.composite
def layouts(draw, shape: tuple[int, ...], ranks: int) -> tuple[Box, ...]:
    """One box a rank: a mesh of the ranks, each of its dimensions a shard or replicas."""
    first = draw(st.sampled_from([n for n in range(1, ranks + 1) if ranks % n == 0]))
    mesh = (first, ranks // first)
    kinds: list[Placement] = [("replicate",), *(("shard", dim) for dim in range(len(shape)))]
    placements = [draw(st.sampled_from(kinds)) for _ in mesh]
    found = []
    for rank in range(ranks):
        boxes = placement_boxes(shape, mesh, placements, [int(i) for i in np.unravel_index(rank, mesh)])
        found.append(boxes[0] if boxes else Box((0,) * len(shape), (0,) * len(shape)))
    return tuple(found)


@st.composite
def recuts(draw) -> list[Reshard]:
    ranks = draw(st.integers(1, 6))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
        one = Reshard(
            shape, draw(st.sampled_from([2, 4])), draw(layouts(shape, ranks)), draw(layouts(shape, ranks))
        )
        found += [one] * draw(st.integers(1, 3))
    return found


def counted(reshard: Reshard, pieces: list[ReshardPiece]) -> list[np.ndarray]:
    """Returns how often each rank gets each element of its box."""
    times = [np.zeros(reshard.shape, np.int64) for _ in reshard.after]
    for piece in pieces:
        assert reshard.before[piece.source].contains(piece.box)
        assert reshard.after[piece.target].contains(piece.box)
        times[piece.target][piece.box.slices()] += 1
    return [count[box.slices()] for count, box in zip(times, reshard.after, strict=True)]


@some
@given(recuts())
def test_every_element_comes_once_and_from_its_own_rank_if_that_has_it(wanted):
    for reshard, pieces in zip(wanted, plan_reshard(wanted), strict=True):
        assert all((count == 1).all() for count in counted(reshard, list(pieces)))
        for piece in pieces:
            if piece.source != piece.target:
                assert piece.box.intersect(reshard.before[piece.target]) is None


@some
@given(recuts(), st.integers(8, 200))
def test_rounds_carry_what_travels_once_in_order_within_their_bound(wanted, chunk_bytes):
    pieces = plan_reshard(wanted)
    carried: dict[int, list[ReshardPiece]] = {number: [] for number in range(len(wanted))}
    last = 0
    for batch in rounds(wanted, pieces, chunk_bytes):
        sent, received = Counter(), Counter()
        for part in batch:
            assert part.tensor >= last
            last = part.tensor
            carried[part.tensor].append(part.piece)
            size = part.piece.box.size * wanted[part.tensor].item_bytes
            sent[part.piece.source] += size
            received[part.piece.target] += size
        assert max([*sent.values(), *received.values()]) <= chunk_bytes
        begun = [
            sum(wanted[number].after[rank].size * wanted[number].item_bytes for number in numbers)
            for numbers in [{part.tensor for part in batch}]
            for rank in range(len(wanted[0].after))
        ]
        assert max(begun) <= chunk_bytes or len({part.tensor for part in batch}) == 1
    for number, reshard in enumerate(wanted):
        own = [piece for piece in pieces[number] if piece.source == piece.target]
        assert all((count == 1).all() for count in counted(reshard, own + carried[number]))


def test_replicas_take_turns_over_tensors_that_change_alike():
    shape = (8, 2)
    whole = Box.whole(shape)
    # Ranks 0 and 1 hold it all; 2 and 3, who hold nothing, want all of each of ten tensors.
    reshard = Reshard(shape, 4, (whole, whole, EMPTY, EMPTY), (EMPTY, EMPTY, whole, whole))
    found = plan_reshard([reshard] * 10)
    sent = Counter(piece.source for pieces in found for piece in pieces)
    assert sent == {0: 10, 1: 10}


def test_a_model_of_many_tensors_is_planned_class_by_class():
    rows = tuple(Box((2 * rank, 0), (2 * rank + 2, 8)) for rank in range(4))
    columns = tuple(Box((0, 2 * rank), (8, 2 * rank + 2)) for rank in range(4))
    found = plan_reshard([Reshard((8, 8), 12, rows, columns)] * 300)
    # One plan: the same object for all.
    assert len({id(pieces) for pieces in found}) == 1
    assert len(found[0]) == 16


def test_what_nobody_holds_is_named():
    half = Box((0, 0), (2, 2))
    with pytest.raises(LayoutGap, match="2:4, 0:2"):
        plan_reshard([Reshard((4, 2), 4, (half, EMPTY), (EMPTY, Box.whole((4, 2))))])


@some
@given(recuts())
def test_the_way_back_is_the_change_reversed(wanted):
    back = [reshard.reversed() for reshard in wanted]
    assert [reshard.reversed() for reshard in back] == wanted
    for reshard, pieces in zip(back, plan_reshard(back), strict=True):
        assert sum(piece.box.size for piece in pieces) == sum(prod(box.shape) for box in reshard.after)
