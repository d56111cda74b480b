"""Packed sequences and the order of reads against numpy: one plan for all columns, credits kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.plan_copies import PackedSequences, copies_of, ragged_index
from earl.dispatch.plan.schedule import schedule
from earl.dispatch.plan.sequence_plan import ContextSlice, plan_batch
from earl.errors import LayoutError, LayoutGap, LayoutOverlap

some = settings(max_examples=60)
COLUMNS = (np.int32, np.bool_, np.float64)


@st.composite
def held(draw, replicas: bool = False):
    """(lengths by sequence, who holds which): every sequence somewhere, some twice."""
    lengths = np.array(draw(st.lists(st.integers(0, 13), min_size=1, max_size=12)))
    owners = draw(st.integers(1, 4))
    at: list[list[int]] = [[] for _ in range(owners)]
    for sequence in range(len(lengths)):
        count = draw(st.integers(1, owners)) if replicas else 1
        for owner in draw(st.permutations(range(owners)))[:count]:
            at[owner].append(sequence)
    packed = []
    for owner, sequences in enumerate(at):
        order = np.array(draw(st.permutations(sequences)), np.int64)
        packed.append(
            PackedSequences(
                f"o{owner}", order, np.concatenate([[0], np.cumsum(lengths[order])]).astype(np.int64)
            )
        )
    return lengths, packed


def values(lengths: np.ndarray, sequence: int) -> np.ndarray:
    return 1000 * sequence + np.arange(lengths[sequence])


def filled(lengths, packed, batch) -> list[np.ndarray]:
    """The reader's columns after the copies, having checked that each row is written once."""
    (block,) = batch.reads.blocks
    held = [
        np.concatenate([np.zeros(0, int), *(values(lengths, s) for s in one.sequences)]) for one in packed
    ]
    columns = []
    for dtype in COLUMNS:
        into, times = np.zeros(batch.offsets[-1], dtype), np.zeros(batch.offsets[-1], int)
        for row, peer in enumerate(block.peer.tolist()):
            at, to, rows = (int(a[row, 0]) for a in (block.source, block.target, block.extent))
            into[to : to + rows] = held[peer][at : at + rows].astype(dtype)
            times[to : to + rows] += 1
        assert (times == 1).all()
        columns.append(into)
    return columns


@some
@given(st.data())
def test_every_rank_gets_its_zigzag_slice_of_each_sequence(data):
    lengths, packed = data.draw(held(replicas=True))
    index = ragged_index(packed, replicas=True)
    wanted = data.draw(st.permutations(range(len(lengths))))[: data.draw(st.integers(0, len(lengths)))]
    cp = data.draw(st.integers(1, 3))
    seen: dict[int, list[int]] = {sequence: [] for sequence in wanted}
    for rank in range(cp):
        batch = plan_batch(index, np.array(wanted, np.int64), (4, 1, 8), ContextSlice(rank, cp))
        columns = filled(lengths, packed, batch)
        expected = []
        for sequence in wanted:
            whole = values(lengths, sequence)
            # torch.chunk's rule: equal chunks, the last ones shorter or empty.
            step = max(-(-len(whole) // (2 * cp)), 1)
            chunks = [whole[i * step : (i + 1) * step] for i in range(2 * cp)]
            mine = whole if cp == 1 else np.concatenate([chunks[rank], chunks[2 * cp - 1 - rank]])
            expected.append(mine)
            seen[sequence].extend(mine.tolist())
        for column, dtype in zip(columns, COLUMNS, strict=True):
            np.testing.assert_array_equal(column, np.concatenate([np.zeros(0, int), *expected]).astype(dtype))
        assert np.diff(batch.offsets).tolist() == [len(one) for one in expected]
        assert batch.reads.size_bytes == 13 * int(batch.offsets[-1]) == batch.reads.loads.sum()
    for sequence, rows in seen.items():
        assert sorted(rows) == values(lengths, sequence).tolist()


def test_sequences_that_lie_end_to_end_are_one_copy():
    packed = [PackedSequences("a", np.array([3, 1, 2]), np.array([0, 5, 9, 10]))]
    (block,) = plan_batch(ragged_index(packed), np.array([1, 2]), (4, 8)).reads.blocks
    assert (block.source.tolist(), block.extent.tolist(), len(block.tensors)) == ([[5]], [[5]], 2)


def test_copies_of_different_micro_batches_stay_apart():
    index = ragged_index([PackedSequences("a", np.array([0, 1]), np.array([0, 4, 8]))])
    (block,) = plan_batch(index, np.arange(2), (4,), priority=np.array([0, 1])).reads.blocks
    assert block.priority.tolist() == [0, 1]


def test_replicas_of_sequences_share_by_bytes():
    lengths = np.full(100, 7)
    every = np.arange(100)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    packed = [PackedSequences(name, every, offsets) for name in "abc"]
    index = ragged_index(packed, replicas=True)
    loads = plan_batch(index, every, (4,)).reads.loads
    assert loads.max() - loads.min() <= 2 * 28
    near = plan_batch(index, every, (4,), cost=np.array([1.0, 0.0, np.inf])).reads.loads
    assert near.tolist() == [0, 2800, 0]


def test_gaps_and_overlaps_are_named():
    one = PackedSequences("a", np.array([1, 2]), np.array([0, 3, 7]))
    with pytest.raises(LayoutOverlap, match=r"a and b both hold sequence 2, \[3:7\]"):
        ragged_index([one, PackedSequences("b", np.array([2]), np.array([0, 4]))])
    with pytest.raises(LayoutError, match="4 rows at a, 9 at b"):
        ragged_index([one, PackedSequences("b", np.array([2]), np.array([0, 9]))], replicas=True)
    with pytest.raises(LayoutError, match="never fall"):
        ragged_index([PackedSequences("a", np.array([1]), np.array([5, 3]))])
    index = ragged_index([one])
    with pytest.raises(LayoutGap, match="sequence 8; missing are 1 of 2"):
        plan_batch(index, np.array([1, 8]), (4,))
    with pytest.raises(LayoutGap, match=r"sequence 2, \[3:7\] of a"):
        plan_batch(index, np.array([2]), (4,), cost=np.array([np.inf]))


def test_nothing_wanted_is_no_request():
    index = ragged_index([PackedSequences("a", np.array([0, 1]), np.array([0, 4, 8]))])
    assert len(schedule(plan_batch(index, np.arange(2), ()).reads, 8)) == 0
    assert len(schedule(plan_batch(index, np.arange(0), (4,)).reads, 8)) == 0
    with pytest.raises(LayoutError, match=r"priority of shape \(1,\) for 2"):
        plan_batch(index, np.arange(2), (4,), priority=np.zeros(1, int))


@some
@given(st.data())
def test_requests_hold_every_copy_once_within_credit_and_in_order(data):
    lengths, packed = data.draw(held())
    index = ragged_index(packed)
    wanted = np.array(data.draw(st.permutations(range(len(lengths)))), np.int64)
    micro = np.sort(np.array([data.draw(st.integers(0, 2)) for _ in wanted], np.int32))
    reads = plan_batch(index, wanted, (4, 1, 8), ContextSlice(0, 2), priority=micro).reads
    credit = data.draw(st.integers(1, 200))
    requests = schedule(reads, credit, first_peer=data.draw(st.integers(0, 3)))
    (block,) = reads.blocks
    times = np.zeros((len(block.tensors), len(block.peer)), int)
    for i in range(len(requests)):
        _, tensors, rows = requests.copies(i)
        assert (block.peer[rows] == requests.peer[i]).all()
        assert (block.priority[rows] == requests.priority[i]).all()
        times[np.ix_(tensors, rows)] += 1
        spelled = copies_of(requests, i)
        assert spelled.tensor.tolist() == [t for t in tensors.tolist() for _ in rows]
        for name in ("source", "target", "extent"):
            np.testing.assert_array_equal(
                getattr(spelled, name), np.concatenate([getattr(block, name)[rows]] * len(tensors))
            )
        size = int(block.elements[rows].sum()) * int(block.item_bytes[tensors].sum())
        assert size == requests.size_bytes[i] and (size <= credit or len(tensors) == len(rows) == 1)
    assert (times == 1).all()
    assert (np.diff(requests.priority) >= 0).all()


def test_peers_are_asked_in_turn_from_the_readers_own():
    packed = [PackedSequences(n, np.array([i]), np.array([0, 4])) for i, n in enumerate("abc")]
    reads = plan_batch(ragged_index(packed), np.arange(3), (1,)).reads
    requests = schedule(reads, 2, first_peer=1)
    assert requests.peer.tolist() == [1, 2, 0]
    with pytest.raises(LayoutError, match="credit"):
        schedule(reads, 0)
