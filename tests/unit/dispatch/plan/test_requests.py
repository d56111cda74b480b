"""Whole N→M transfers, request by request, against numpy; what cannot be had is named as it is."""

from __future__ import annotations

import re
from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.plan_copies import PackedSequences, copies_of, ragged_index
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.plan.class_plan import Reads, Want, plan_reads
from earl.dispatch.plan.schedule import ReadRequests, schedule
from earl.dispatch.plan.sequence_plan import ContextSlice, RaggedIndex, plan_batch
from earl.errors import LayoutGap, LayoutOverlap

some = settings(max_examples=80)
DTYPES = (np.int32, np.uint8, np.float64)


@st.composite
def layouts(draw, shape: tuple[int, ...], stack: int, mesh: tuple[int, ...]) -> MeshLayout:
    dims = st.integers(0, len(shape) - 1)
    kinds = [
        st.just(("replicate",)),
        dims.map(lambda dim: ("shard", dim)),
        st.tuples(st.just("strided_shard"), dims, st.integers(1, 3)),
        dims.map(lambda dim: ("zigzag", dim)),
    ]
    placements = tuple(draw(st.one_of(kinds)) for _ in mesh)
    return MeshLayout(shape, mesh, placements, tuple(f"o{i}" for i in range(prod(mesh))), stack)


meshes = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)


@st.composite
def shapes(draw) -> tuple[tuple[int, ...], int]:
    """(shape, stack)"""
    stack = draw(st.integers(0, 2))
    inner = draw(st.integers(0 if stack else 1, 2))
    return tuple(draw(st.lists(st.integers(1, 6), min_size=stack + inner, max_size=stack + inner))), stack


def at(runs) -> list[list[int]]:
    return [[i for a, b in one for i in range(a, b)] for one in runs]


def local(layout: MeshLayout, whole: np.ndarray, runs) -> dict[int, np.ndarray]:
    """Returns by tensor number what the owner of these runs has in its memory."""
    held = at(runs)
    numbers = np.arange(layout.tensors).reshape(layout.shape[: layout.stack])
    return {
        int(numbers[lead]): whole[lead][np.ix_(*held[layout.stack :])]
        if held[layout.stack :]
        else whole[lead]
        for lead in np.ndindex(*layout.shape[: layout.stack])
        if all(i in one for i, one in zip(lead, held, strict=False))
    }


def check_order(requests: ReadRequests, credit_bytes: int, first_peer: int) -> None:
    """Priorities first; then every peer's first request, beginning with the reader's own, then the second."""
    owners = len(requests.reads.owners)
    asked: dict[tuple[int, int], int] = {}
    keys = []
    for peer, priority in zip(requests.peer.tolist(), requests.priority.tolist(), strict=True):
        wave = asked[priority, peer] = asked.get((priority, peer), -1) + 1
        keys.append((priority, wave, (peer - first_peer) % owners))
    assert keys == sorted(keys) and len(set(keys)) == len(keys)
    for i, size in enumerate(requests.size_bytes.tolist()):
        _, tensors, rows = requests.copies(i)
        assert size <= credit_bytes or len(tensors) == len(rows) == 1


@some
@given(st.data())
def test_every_owner_of_a_new_layout_gets_its_part_request_by_request(data):
    """Several classes of tensors of different dtypes and priorities from N owners to each of M."""
    mesh, target_mesh = data.draw(meshes), data.draw(meshes)
    classes = []
    for dtype in DTYPES[: data.draw(st.integers(1, 3))]:
        shape, stack = data.draw(shapes())
        source = data.draw(layouts(shape, stack, mesh))
        target = data.draw(layouts(shape, stack, target_mesh))
        whole = (np.arange(prod(shape)) % 251).reshape(shape).astype(dtype)
        classes.append((source, target, whole, data.draw(st.integers(0, 2))))
    owners = prod(mesh)
    cost = np.array([float(data.draw(st.integers(0, 1))) for _ in range(owners)])
    before = np.array([data.draw(st.integers(0, 99)) for _ in range(owners)])
    credit, first_peer = data.draw(st.integers(1, 300)), data.draw(st.integers(0, owners))
    for rank in range(prod(target_mesh)):
        wants = [
            Want(source, target.runs(rank), whole.itemsize, priority)
            for source, target, whole, priority in classes
        ]
        reads = plan_reads(wants, cost, before)
        requests = schedule(reads, credit, first_peer=first_peer)
        check_order(requests, credit, first_peer)
        expected = [local(target, whole, target.runs(rank)) for _, target, whole, _ in classes]
        into = [{n: np.zeros_like(a) for n, a in one.items()} for one in expected]
        times = [{n: np.zeros(a.shape, int) for n, a in one.items()} for one in expected]
        moved = before.copy()
        for i in range(len(requests)):
            block, peer, size = requests.copies(i)[0], int(requests.peer[i]), 0
            source, _, whole, priority = classes[block.want]
            assert requests.priority[i] == priority
            memory = local(source, whole, source.runs(peer))
            copies = copies_of(requests, i)
            for n, a, b, extent in zip(
                copies.tensor.tolist(), copies.source, copies.target, copies.extent, strict=True
            ):
                of = tuple(slice(x, x + e) for x, e in zip(a.tolist(), extent.tolist(), strict=True))
                to = tuple(slice(x, x + e) for x, e in zip(b.tolist(), extent.tolist(), strict=True))
                assert memory[n][of].shape == tuple(extent)
                into[block.want][n][to] = memory[n][of]
                times[block.want][n][to] += 1
                size += int(extent.prod()) * whole.itemsize
            assert size == requests.size_bytes[i]
            moved[peer] += size
        for one, two, count in zip(into, expected, times, strict=True):
            for n in two:
                np.testing.assert_array_equal(one[n], two[n])
                assert (count[n] == 1).all()
        assert moved.tolist() == reads.loads.tolist()


@some
@given(st.data())
def test_what_is_named_as_missing_is_missing(data):
    """Owners that cannot be read leave a gap just where they alone hold something that is wanted."""
    shape, stack = data.draw(shapes())
    source = data.draw(layouts(shape, stack, data.draw(meshes)))
    # Those that lie alike are joined, wherever they lie in the tensor.
    target = data.draw(st.one_of(st.just(source), layouts(shape, stack, data.draw(meshes))))
    runs = target.runs(data.draw(st.integers(0, len(target.owners) - 1)))
    dead = [data.draw(st.booleans()) for _ in source.owners]
    held = np.zeros(shape, bool)
    for peer, gone in enumerate(dead):
        if not gone:
            held[np.ix_(*at(source.runs(peer)))] = True
    wanted = np.zeros(shape, bool)
    wanted[np.ix_(*at(runs))] = True
    missing = wanted & ~held
    try:
        reads = plan_reads([Want(source, runs, 4)], np.where(dead, np.inf, 0.0))
    except LayoutGap as gap:
        text = str(gap)
        named = re.search(r"no shard holds \[(.*?)\] of tensor (\d+)", text)
        assert named, text
        ranges = [tuple(map(int, one.split(":"))) for one in named[1].split(", ") if one]
        lead = np.unravel_index(int(named[2]), shape[:stack]) if stack else ()
        box = missing[lead][tuple(slice(a, b) for a, b in ranges)]
        assert box.size and box.all()
        # Only owners that hold it all are named, none of whom can be read.
        for owner in text.partition("belongs to ")[2].split(", "):
            peer = source.owners.index(owner.strip())
            mine = np.zeros(shape, bool)
            mine[np.ix_(*at(source.runs(peer)))] = True
            assert dead[peer] and mine[lead][tuple(slice(a, b) for a, b in ranges)].all()
    else:
        assert not missing.any()
        assert reads.size_bytes == 4 * wanted.sum() and not reads.loads[np.array(dead)].any()


# --- packed sequences -----------------------------------------------------------------------


def pack(name: str, sequences: list[int], lengths: np.ndarray) -> PackedSequences:
    order = np.array(sequences, np.int64)
    return PackedSequences(name, order, np.concatenate([[0], np.cumsum(lengths[order])]).astype(np.int64))


@some
@given(st.data())
def test_a_batch_over_data_and_context_ranks_is_every_row_once(data):
    """N producers, some of whom hold the same sequences, to dp × cp ranks, in micro-batches."""
    lengths = np.array(data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=15)))
    producers = data.draw(st.integers(1, 4))
    holders = [data.draw(st.sets(st.integers(0, producers - 1), min_size=1)) for _ in lengths]
    names = [f"p{i}" for i in range(producers)]
    orders = [
        data.draw(st.permutations([s for s, who in enumerate(holders) if i in who])) for i in range(producers)
    ]
    index = ragged_index(
        [pack(name, order, lengths) for name, order in zip(names, orders, strict=True)], replicas=True
    )
    nothing = np.zeros(0, np.int64)
    whole = [1000 * s + np.arange(int(length)) for s, length in enumerate(lengths)]
    memory = [np.concatenate([nothing, *(whole[s] for s in order)]) for order in orders]
    dp, cp = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    rank_of = [data.draw(st.integers(0, dp - 1)) for _ in lengths]
    cost = np.array([float(data.draw(st.integers(0, 1))) for _ in names])
    seen = [np.zeros_like(one) for one in whole]
    row_bytes = [np.dtype(dtype).itemsize for dtype in DTYPES]
    for d in range(dp):
        mine = data.draw(st.permutations([s for s, rank in enumerate(rank_of) if rank == d]))
        micro = np.sort(np.array([data.draw(st.integers(0, 2)) for _ in mine], np.int32))
        for c in range(cp):
            context = ContextSlice(c, cp)
            batch = plan_batch(index, np.array(mine, np.int64), row_bytes, context, priority=micro, cost=cost)
            requests = schedule(batch.reads, data.draw(st.integers(1, 200)))
            into = [np.zeros(batch.offsets[-1], dtype) for dtype in DTYPES]
            times = [np.zeros(batch.offsets[-1], int) for _ in DTYPES]
            for i in range(len(requests)):
                copies, peer = copies_of(requests, i), int(requests.peer[i])
                for n, a, b, rows in zip(
                    copies.tensor.tolist(), *(x[:, 0].tolist() for x in (copies.source, copies.target)),
                    copies.extent[:, 0].tolist(), strict=True,
                ):  # fmt: skip
                    of = memory[peer][a : a + rows].astype(DTYPES[n])
                    assert len(of) == rows
                    into[n][b : b + rows] = of
                    times[n][b : b + rows] += 1
                    # Rows of one micro-batch only.
                    first, last = np.searchsorted(batch.offsets, [b, b + rows - 1], "right") - 1
                    assert (micro[first : last + 1] == requests.priority[i]).all()
            start, stop = context.of(lengths[np.array(mine, np.int64)])
            expected = [nothing]
            for sequence, firsts, lasts in zip(mine, start.tolist(), stop.tolist(), strict=True):
                for a, b in zip(firsts, lasts, strict=True):
                    expected.append(whole[sequence][a:b])
                    seen[sequence][a:b] += 1
            for column, count, dtype in zip(into, times, DTYPES, strict=True):
                np.testing.assert_array_equal(column, np.concatenate(expected).astype(dtype))
                assert (count == 1).all()
            check_nearest(batch.reads, index, mine, cost)
    assert all((times == 1).all() for times in seen)


def check_nearest(reads: Reads, index: RaggedIndex, sequences: list[int], cost: np.ndarray) -> None:
    """Nobody is asked who is farther than another holder of the same rows."""
    (block,) = reads.blocks
    for peer, source, rows in zip(
        block.peer.tolist(), block.source[:, 0].tolist(), block.extent[:, 0].tolist(), strict=True
    ):
        own = index.peer == peer
        stops = index.start + index.length
        touched = index.sequence[own & (index.start < source + rows) & (stops > source) & (index.length > 0)]
        assert set(touched.tolist()) <= set(sequences)
        for sequence in touched:
            assert cost[peer] == cost[index.peer[index.sequence == sequence]].min()


@some
@given(st.data())
def test_a_sequence_that_cannot_be_had_or_is_had_twice_is_named(data):
    lengths = np.array(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=8)))
    holders = [data.draw(st.sets(st.integers(0, 2), max_size=2)) for _ in lengths]
    held = [[s for s, who in enumerate(holders) if i in who] for i in range(3)]
    packed = [pack(n, data.draw(st.permutations(s)), lengths) for n, s in zip("abc", held, strict=True)]
    twice = [s for s, who in enumerate(holders) if len(who) > 1]
    try:
        ragged_index(packed)
    except LayoutOverlap as overlap:
        named = re.match(r"(\w) and (\w) both hold sequence (\d+), \[(\d+):(\d+)\]", str(overlap))
        assert named, str(overlap)
        sequence = int(named[3])
        first, second = "abc".index(named[1]), "abc".index(named[2])
        assert sequence in twice and {first, second} == holders[sequence]
        place = packed[first].sequences.tolist().index(sequence)
        assert packed[first].offsets[place : place + 2].tolist() == [int(named[4]), int(named[5])]
    else:
        assert not twice
    index = ragged_index(packed, replicas=True)
    dead = [data.draw(st.booleans()) for _ in packed]
    unknown = [s for s, who in enumerate(holders) if not who]
    unread = [s for s, who in enumerate(holders) if who and all(dead[i] for i in who)]
    try:
        plan_batch(index, np.arange(len(lengths)), (4,), cost=np.where(dead, np.inf, 0.0))
    except LayoutGap as gap:
        if unknown:
            assert f"no owner holds sequence {unknown[0]}; missing are {len(unknown)} of" in str(gap)
        else:
            named = re.search(r"holds sequence (\d+), \[(\d+):(\d+)\] of (\w)", str(gap))
            assert named, str(gap)
            sequence, owner = int(named[1]), "abc".index(named[4])
            assert sequence in unread and owner in holders[sequence]
            place = packed[owner].sequences.tolist().index(sequence)
            assert packed[owner].offsets[place : place + 2].tolist() == [int(named[2]), int(named[3])]
    else:
        assert not unknown and not unread


@some
@given(st.data())
def test_replicas_of_sequences_get_no_more_than_their_share_and_one_sequence(data):
    """The level: what all would stand at if bytes could be split at will."""
    lengths = np.array(data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=40)))
    owners = data.draw(st.integers(2, 4))
    everyone = list(range(len(lengths)))
    index = ragged_index([pack(f"o{i}", everyone, lengths) for i in range(owners)], replicas=True)
    before = np.array([data.draw(st.integers(0, 400)) for _ in range(owners)])
    loads = plan_batch(index, np.array(everyone), (3, 1), loads=before).reads.loads
    assert (loads >= before).all() and (loads - before).sum() == 4 * lengths.sum()
    level = int(before.min())
    while np.maximum(level - before, 0).sum() < 4 * lengths.sum():
        level += 1
    assert (loads <= np.maximum(before, level + 4 * lengths.max())).all()
