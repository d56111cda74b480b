"""Ragged sequences over every transport: columns of many rows arrive packed, whole or a rank's slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from benchmarks.put_tensors import put_tensors
from earl.bus.connection import open_redis
from earl.dispatch.layout.box import Box
from earl.dispatch.plan.sequence_plan import ContextSlice
from earl.dispatch.publish.sequence_store import SequenceStore
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Read, SequenceRead
from earl.errors import ArenaFull, ChecksumMismatch, DescriptorMissing, LayoutError, LayoutGap, RegionGone
from tests.support.dispatch import PATHS, READ_S, Plane, plane_fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")

COLUMNS = [("tokens", "int32"), ("loss_mask", "uint8"), ("logprobs", "float32")]
LENGTHS = [5, 1, 0, 300, 64, 7, 4096, 33, 70_000]


opened, plane = plane_fixtures()


def values(name: str, number: int, rows: int) -> np.ndarray:
    dtype = dict(COLUMNS)[name]
    return ((np.arange(rows) * 7 + number * 1009 + len(name)) % 251).astype(dtype)


def fill(store: SequenceStore, number: int, rows: int) -> str:
    name = f"{number}/1"
    for column, into in store.reserve(name, rows).items():
        into[:] = values(column, number, rows)
    return name


async def publish(store: SequenceStore, lengths: list[int]) -> list[str]:
    names = [fill(store, number, rows) for number, rows in enumerate(lengths)]
    await store.publish(names)
    return [store.key_of(name) for name in names]


def targets(rows: int, names: list[str]) -> dict[str, np.ndarray]:
    return {name: np.full(rows, 255, dtype).astype(dtype) for name, dtype in COLUMNS if name in names}


async def test_columns_of_several_owners_pack_in_the_order_that_was_asked_for(plane: Plane):
    owners = [plane.store.sequences(f"trajectories/o{i}/1", COLUMNS) for i in range(3)]
    keys = [key for owner in owners for key in await publish(owner, LENGTHS)]
    numbers = [number for _ in owners for number in range(len(LENGTHS))]
    order = np.random.default_rng(3).permutation(len(keys))
    rows = np.array([LENGTHS[numbers[i]] for i in order])
    into = targets(int(rows.sum()), ["tokens", "logprobs"])
    receipt = await plane.reader.read([SequenceRead([keys[i] for i in order], rows, into)], READ_S)
    for name, array in into.items():
        expected = np.concatenate([values(name, numbers[i], LENGTHS[numbers[i]]) for i in order])
        np.testing.assert_array_equal(array, expected)
    assert receipt.size_bytes_by_path == {PATHS[plane.kind]: 8 * int(rows.sum())}
    assert receipt.verified


@pytest.mark.parametrize("size", [2, 4])
async def test_a_context_parallel_rank_reads_its_zigzag_slices(plane: Plane, size: int):
    store = plane.store.sequences("trajectories/zigzag/1", COLUMNS)
    keys = await publish(store, LENGTHS)
    for rank in range(size):
        context = ContextSlice(rank, size)
        start, stop = context.of(np.array(LENGTHS))
        rows = int((stop - start).sum())
        into = targets(rows, [name for name, _ in COLUMNS])
        priority = np.arange(len(keys), dtype=np.int32)[::-1]
        await plane.reader.read(
            [SequenceRead(keys, np.array(LENGTHS), into, context, priority=priority)], READ_S
        )
        for name, array in into.items():
            slices = [
                values(name, number, length)[a:b]
                for number, length in enumerate(LENGTHS)
                for a, b in zip(start[number], stop[number], strict=True)
            ]
            np.testing.assert_array_equal(array, np.concatenate(slices))


async def test_what_cannot_be_read_is_named(plane: Plane):
    store = plane.store.sequences("trajectories/named/1", COLUMNS)
    (key,) = await publish(store, [10])
    two = np.array([10, 10])
    with pytest.raises(DescriptorMissing, match="named/1#9/9"):
        read = SequenceRead([key, store.key_of("9/9")], two, targets(20, ["tokens"]))
        await plane.reader.read([read], READ_S)
    with pytest.raises(DescriptorMissing, match="nobody/1#1/1"):
        read = SequenceRead([key, "trajectories/nobody/1#1/1"], two, targets(20, ["tokens"]))
        await plane.reader.read([read], READ_S)
    with pytest.raises(LayoutError, match="0/1 has 10 rows, not 11"):
        await plane.reader.read([SequenceRead([key], np.array([11]), targets(11, ["tokens"]))], READ_S)
    with pytest.raises(LayoutGap, match="no column 'values'"):
        read = SequenceRead([key], np.array([10]), {"values": np.zeros(10, np.float32)})
        await plane.reader.read([read], READ_S)
    with pytest.raises(LayoutError, match="tokens is int32, the target int64"):
        read = SequenceRead([key], np.array([10]), {"tokens": np.zeros(10, np.int64)})
        await plane.reader.read([read], READ_S)
    with pytest.raises(LayoutError, match="target int32"):
        await plane.reader.read([SequenceRead([key], np.array([10]), targets(9, ["tokens"]))], READ_S)
    with pytest.raises(LayoutError, match="held already"):
        store.reserve("0/1", 3)
    await store.remove(["0/1", "unknown"])
    with pytest.raises(DescriptorMissing):
        await plane.reader.read([SequenceRead([key], np.array([10]), targets(10, ["tokens"]))], READ_S)
    assert plane.store.arena.free_bytes == plane.store.arena.capacity_bytes


async def test_a_region_that_was_freed_and_used_again_is_refused(plane: Plane):
    store = plane.store.sequences("trajectories/reused/1", COLUMNS)
    (key,) = await publish(store, [1000])
    redis = open_redis(plane.url)
    hash_ = f"{plane.registry._prefix}descriptor:{store.key}"
    kept = await redis.hgetall(hash_)  # type: ignore[misc]
    await store.remove(["0/1"])
    await publish(store, [1000])
    await redis.hset(hash_, mapping=kept)  # type: ignore[misc]
    with pytest.raises(RegionGone):
        await plane.reader.read([SequenceRead([key], np.array([1000]), targets(1000, ["tokens"]))], READ_S)
    await redis.hset(hash_, "0/1", b"short")  # type: ignore[misc]
    with pytest.raises(LayoutError, match="damaged"):
        await plane.reader.read([SequenceRead([key], np.array([1000]), targets(1000, ["tokens"]))], READ_S)
    await redis.aclose()
    await store.remove(["0/1"])


async def test_a_flipped_byte_is_noticed(plane: Plane):
    store = plane.store.sequences("trajectories/flipped/1", COLUMNS)
    rows = 2_000_000
    (key,) = await publish(store, [rows])
    region = store._held["0/1"][1]
    region.array(np.uint8, (region.size_bytes,))[5_000_000] ^= 1
    read = SequenceRead([key], np.array([rows]), targets(rows, ["tokens"]))
    with pytest.raises(ChecksumMismatch, match="block 4"):
        await plane.reader.read([read], READ_S)
    await store.remove(["0/1"])


async def test_a_registry_that_lost_everything_is_told_again(plane: Plane):
    store = plane.store.sequences("trajectories/lost/1", COLUMNS)
    keys = await publish(store, [10, 20])
    await put_tensors(plane.store, "plain", {"x": np.arange(5, dtype=np.int32)})
    redis = open_redis(plane.url)
    await redis.flushall()
    read = SequenceRead(keys, np.array([10, 20]), targets(30, ["tokens"]))
    async with asyncio.timeout(30):
        while True:
            try:
                await plane.reader.read([read], READ_S)
                await plane.read("plain", "x", np.zeros(5, np.int32))
                break
            except DescriptorMissing:
                await asyncio.sleep(0.1)
    # What is published next finds the hash gone, and completes it.
    await redis.delete(f"{plane.registry._prefix}descriptor:{store.key}")
    await store.publish([fill(store, 7, 5)])
    rows = np.array([10, 20, 5])
    await plane.reader.read(
        [SequenceRead([*keys, store.key_of("7/1")], rows, targets(35, ["tokens"]))], READ_S
    )
    await redis.aclose()


@asynccontextmanager
async def without_renewals(store: TensorStore) -> AsyncIterator[None]:
    """Within the block the owner does not look by itself, every two seconds, for what its registry lost."""
    assert store._renewing is not None
    store._renewing.cancel()
    await asyncio.wait([store._renewing])
    store._renewing = None
    yield
    store._keep_renewing()


async def test_records_that_were_lost_behind_a_living_head_are_noticed(plane: Plane):
    store = plane.store.sequences("trajectories/part/1", COLUMNS)
    keys = await publish(store, [3, 4])
    redis = open_redis(plane.url)
    async with without_renewals(plane.store):
        await redis.hdel(f"{plane.registry._prefix}descriptor:{store.key}", "0/1")  # type: ignore[misc]
        assert await store.renew() is False
        assert await store.renew() is True
    await plane.reader.read([SequenceRead(keys, np.array([3, 4]), targets(7, ["tokens"]))], READ_S)
    await redis.aclose()


async def test_what_is_removed_while_it_is_published_is_not_known(plane: Plane):
    store = plane.store.sequences("trajectories/race/1", COLUMNS)
    big, small = fill(store, 1, 3_000_000), fill(store, 2, 10)
    publishing = asyncio.create_task(store.publish([big, small]))
    await asyncio.sleep(0)
    await store.remove([big])
    again = fill(store, 3, 20)
    await publishing
    await store.publish([again])
    read = SequenceRead(
        [store.key_of(small), store.key_of(again)], np.array([10, 20]), targets(30, ["tokens"])
    )
    await plane.reader.read([read], READ_S)
    with pytest.raises(DescriptorMissing):
        gone = SequenceRead([store.key_of(big)], np.array([3_000_000]), targets(3_000_000, ["tokens"]))
        await plane.reader.read([gone], READ_S)
    await store.remove(store.names)
    assert plane.store.arena.free_bytes == plane.store.arena.capacity_bytes


async def test_an_empty_range_among_others_is_nothing(plane: Plane):
    await put_tensors(plane.store, "ranges", {"x": np.arange(10, dtype=np.int32)})
    into = [np.full(n, -1, np.int32) for n in (3, 0, 2)]
    boxes = [Box((1,), (4,)), Box((3,), (3,)), Box((8,), (10,))]
    reads = [Read(("ranges",), "x", box, array) for box, array in zip(boxes, into, strict=True)]
    await plane.reader.read(reads, READ_S)
    assert [array.tolist() for array in into] == [[1, 2, 3], [], [8, 9]]
    with pytest.raises(LayoutError, match="1 counts of rows for 2 sequences"):
        await plane.reader.read([SequenceRead(["a#1", "a#2"], np.array([1]), {})], READ_S)


async def test_a_full_arena_says_so_and_keeps_nothing(plane: Plane):
    store = plane.store.sequences("trajectories/full/1", COLUMNS)
    with pytest.raises(ArenaFull):
        store.reserve("1/1", 1 << 30)
    assert store.names == []
    assert plane.store.arena.free_bytes == plane.store.arena.capacity_bytes
