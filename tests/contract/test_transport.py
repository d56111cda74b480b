"""Checks what every transport promises, once for each: `shm`, `ucx` and `nixl` run the same tests."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from benchmarks.put_tensors import Placed, put_tensors
from earl.bus.connection import open_redis
from earl.dispatch.describe.regions import RegionRef
from earl.dispatch.layout.box import Box
from earl.dispatch.publish.tensor_store import TensorSpec
from earl.dispatch.read.reader import Dispatcher, Read
from earl.dispatch.registry.registry import Registry
from earl.errors import (
    ChecksumMismatch,
    DescriptorMissing,
    LayoutError,
    PeerLost,
    ReadTimeout,
    RegionGone,
    VersionGone,
)
from tests.support.clock import stopped_clock
from tests.support.content import MIB, assert_random, assert_same, random_bytes
from tests.support.dispatch import (
    PATHS,
    PREFIX,
    READ_S,
    OwnerProcess,
    Plane,
    changed,
    plane_fixtures,
    publish_descriptors,
)
from tests.support.idle import assert_sleeps
from tests.support.serving import serving_pid

pytestmark = pytest.mark.asyncio(loop_scope="module")


opened, plane = plane_fixtures()


async def test_a_box_over_two_shards_arrives_whole(plane: Plane):
    whole = np.random.default_rng(1).standard_normal((129, 77)).astype(np.float32)
    top, bottom = Box((0, 0), (65, 77)), Box((65, 0), (129, 77))
    for key, part in (("boxes/0", top), ("boxes/1", bottom)):
        await put_tensors(plane.store, key, {"w": Placed(whole[part.slices()], whole.shape, part)})
    box = Box((40, 10), (100, 60))
    into = np.zeros(box.shape, np.float32)
    receipt = await plane.reader.read([Read(("boxes/0", "boxes/1"), "w", box, into)], READ_S)
    np.testing.assert_array_equal(into, whole[box.slices()])
    assert receipt.size_bytes_by_path == {PATHS[plane.kind]: into.nbytes}
    assert receipt.verified
    layouts = await plane.reader.describe(["boxes/0", "boxes/1"])
    assert (layouts["w"].shape, layouts["w"].dtype) == (whole.shape, "float32")


async def test_a_target_may_be_strided_too(plane: Plane):
    whole = random_bytes(64 * 96).reshape(64, 96).view(np.int32)
    await put_tensors(plane.store, "strided", {"w": whole})
    canvas = np.full((50, 60), -1, np.int32)
    into = canvas[3:43:2, 5:55:5]
    box = Box((10, 7), (30, 17))
    await plane.read("strided", "w", into, box)
    np.testing.assert_array_equal(into, whole[box.slices()])
    into[...] = -1
    assert (canvas == -1).all(), "a read wrote outside its target"


async def test_ragged_columns_pack_into_one_buffer(plane: Plane):
    lengths = [5, 0, 1, 300, 64, 7, 4096, 33]
    columns = {f"ragged/{i}": np.arange(n, dtype=np.int32) + 1000 * i for i, n in enumerate(lengths)}
    for key, column in columns.items():
        await put_tensors(plane.store, key, {"tokens": column, "loss_mask": (column % 2).astype(np.uint8)})
    tokens = np.zeros(sum(lengths), np.int32)
    mask = np.zeros(sum(lengths), np.uint8)
    reads, start = [], 0
    for key, column in columns.items():
        stop = start + len(column)
        reads += [
            Read((key,), "tokens", None, tokens[start:stop]),
            Read((key,), "loss_mask", None, mask[start:stop]),
        ]
        start = stop
    await plane.reader.read(reads, READ_S)
    expected = np.concatenate(list(columns.values()))
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_array_equal(mask, expected % 2)


async def test_every_dtype_scalars_and_nothing(plane: Plane):
    tensors: dict[str, np.ndarray] = {
        np.dtype(t).name: np.arange(7).astype(t)
        for t in ("uint8", "int8", "bool", "int32", "int64", "float16", "float32", "float64", "uint16")
    }
    tensors |= {"scalar": np.array(3.5, np.float32), "nothing": np.zeros((0, 4), np.float32)}
    await put_tensors(plane.store, "dtypes", tensors)
    targets = {name: np.zeros_like(tensor) for name, tensor in tensors.items()}
    await plane.reader.read([Read(("dtypes",), name, None, t) for name, t in targets.items()], READ_S)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(targets[name], tensor)
    assert (await plane.reader.describe(["dtypes"]))["uint16"].dtype == "bfloat16"
    empty = np.zeros((0,), np.int32)
    receipt = await plane.read("dtypes", "int32", empty, Box((3,), (3,)))
    assert receipt.size_bytes == 0


@pytest.mark.parametrize("size_bytes", [256 * MIB + 12345, pytest.param(1 << 30, marks=pytest.mark.slow)])
async def test_a_large_read_is_right(plane: Plane, size_bytes: int, tmp_path: Path):
    owner = await OwnerProcess.start(plane.config, plane.url, PREFIX, tmp_path, "large", size_bytes)
    try:
        into = np.zeros(size_bytes, np.uint8)
        receipt = await plane.read(owner.key, "x", into, deadline_s=100.0)
        assert_random(into, owner.incarnation)
        assert receipt.size_bytes_by_path == {PATHS[plane.kind]: size_bytes}
    finally:
        await owner.close()


async def test_a_thousand_reads_at_once(plane: Plane):
    data = random_bytes(8 * MIB)
    await put_tensors(plane.store, "crowd", {"x": data})
    rng = np.random.default_rng(3)
    starts = rng.integers(0, len(data) - 100_000, 1000)
    targets = [np.zeros(int(n), np.uint8) for n in rng.integers(1, 100_000, 1000)]
    await asyncio.gather(
        *(
            plane.read("crowd", "x", into, Box((int(start),), (int(start) + len(into),)))
            for start, into in zip(starts, targets, strict=True)
        )
    )
    for start, into in zip(starts, targets, strict=True):
        assert_same(into, data[start : start + len(into)])


async def test_a_deadline_ends_a_read_for_good(plane: Plane):
    """The deadline passes in the middle of the read: when the first bytes have arrived and the last ones have
    not.
    """
    data = random_bytes(128 * MIB)
    await put_tensors(plane.store, "late", {"x": data})
    assert data[0]
    into = np.zeros_like(data)
    with stopped_clock() as advance:
        while True:
            into[0] = 0
            reading = asyncio.create_task(plane.read("late", "x", into, deadline_s=1.0))
            while not into[0] and not reading.done():  # noqa: ASYNC110
                await asyncio.sleep(0)
            advance(1.0)
            try:
                await reading
            except ReadTimeout:
                break
    into[:] = 0xAA
    other = np.zeros_like(data)
    await plane.read("late", "x", other)
    assert_same(other, data)
    assert_same(into, 0xAA)  # a read that has raised writes no more


async def test_cancellation_under_fire_harms_nobody(plane: Plane):
    data = random_bytes(32 * MIB)
    await put_tensors(plane.store, "fire", {"x": data})
    rng = np.random.default_rng(5)
    for _ in range(6):
        targets = [np.zeros(2 * MIB + 7, np.uint8) for _ in range(24)]
        starts = [int(s) for s in rng.integers(0, len(data) - len(targets[0]), len(targets))]
        tasks = [
            asyncio.create_task(plane.read("fire", "x", into, Box((start,), (start + len(into),))))
            for start, into in zip(starts, targets, strict=True)
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for i in rng.permutation(len(tasks))[:16]:
            tasks[i].cancel()
            await asyncio.sleep(0)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome, start, into in zip(outcomes, starts, targets, strict=True):
            if isinstance(outcome, asyncio.CancelledError):
                into[:] = 0x55
            else:
                assert not isinstance(outcome, BaseException), outcome
                assert_same(into, data[start : start + len(into)])
        again = np.zeros_like(data)
        await plane.read("fire", "x", again)
        assert_same(again, data)
        for outcome, into in zip(outcomes, targets, strict=True):
            if isinstance(outcome, asyncio.CancelledError):
                assert_same(into, 0x55)


async def test_closing_a_reader_ends_its_reads(plane: Plane):
    data = random_bytes(128 * MIB)
    await put_tensors(plane.store, "closing", {"x": data})
    into = np.zeros_like(data)
    async with asyncio.timeout(READ_S), await Dispatcher.create(plane.registry, plane.config) as reader:
        reading = asyncio.create_task(reader.read([Read(("closing",), "x", None, into)], READ_S))
        while not into[0] and not reading.done():  # noqa: ASYNC110
            await asyncio.sleep(0)
        await reader.close()
        try:
            await reading
            assert_same(into, data)
        except PeerLost:
            into[:] = 0x11
    again = np.zeros_like(data)
    await plane.read("closing", "x", again)
    assert_same(again, data)
    if reading.exception() is not None:
        assert_same(into, 0x11)  # a read that has raised writes no more


@pytest.mark.parametrize("key, error", [("forged", RegionGone), ("weights/1/owner", VersionGone)])
async def test_another_life_of_the_owner_is_refused(plane: Plane, key: str, error: type):
    descriptor = await put_tensors(plane.store, "real", {"x": random_bytes(1000)})

    def other_life(region: RegionRef) -> RegionRef:
        arena = dataclasses.replace(region.arena, nonce=region.arena.nonce ^ 1, incarnation=7)
        return dataclasses.replace(region, arena=arena)

    await publish_descriptors(plane.registry, [changed(descriptor, key, other_life)])
    with pytest.raises(error):
        await plane.read(key, "x", np.zeros(1000, np.uint8))


@pytest.mark.parametrize("key, error", [("again", RegionGone), ("weights/2/owner", VersionGone)])
async def test_a_reused_region_is_refused(plane: Plane, key: str, error: type):
    old = await put_tensors(plane.store, key, {"x": random_bytes(5000)})
    await plane.store.remove(key)
    await publish_descriptors(plane.registry, [old])
    with pytest.raises(error):
        await plane.read(key, "x", np.zeros(5000, np.uint8))
    await put_tensors(plane.store, "successor", {"x": random_bytes(5000, 1)})
    with pytest.raises(error):
        await plane.read(key, "x", np.zeros(5000, np.uint8))


async def test_a_region_freed_under_a_read_is_noticed(plane: Plane):
    data = random_bytes(64 * MIB)
    endings = set()
    for turn in range(8):
        await put_tensors(plane.store, "moving", {"x": data})
        into = np.zeros_like(data)
        reading = asyncio.create_task(plane.read("moving", "x", into))
        for _ in range(10 * turn):
            await asyncio.sleep(0)
        await plane.store.remove("moving")
        array = plane.store.reserve(
            "overwriting", {"x": Placed(data, data.shape, Box.whole(data.shape)).spec}
        )["x"]
        array[:] = 0
        try:
            await reading
            assert_same(into, data)
            endings.add("read")
        except (RegionGone, DescriptorMissing) as error:
            endings.add(type(error).__name__)
        await plane.store.remove("overwriting")
    assert endings


async def test_a_descriptor_that_lies_about_sizes_is_refused(plane: Plane):
    """Never a byte outside the region that the arena itself knows."""
    descriptor = await put_tensors(plane.store, "small", {"x": random_bytes(100)})
    shards = descriptor.tensors[0].shards[0]
    region = dataclasses.replace(shards.region, size_bytes=1 << 40, checksums=())
    whole = dataclasses.replace(shards, region=region, box=Box((0,), (4096,)))
    tensor = dataclasses.replace(descriptor.tensors[0], shape=(4096,), shards=(whole,))
    await publish_descriptors(
        plane.registry, [dataclasses.replace(descriptor, key="liar", tensors=(tensor,))]
    )
    into = np.zeros(4096, np.uint8)
    with pytest.raises(LayoutError, match="without checksums"):
        await plane.read("liar", "x", into)
    unverified = plane.config.model_copy(update={"checksums": "off"})
    async with await Dispatcher.create(plane.registry, unverified) as reader:
        with pytest.raises(RegionGone):
            await reader.read([Read(("liar",), "x", None, into)], READ_S)
    assert not into.any()


async def test_what_is_not_published_is_named(plane: Plane):
    with pytest.raises(DescriptorMissing, match="trajectory/9/9"):
        await plane.read("trajectory/9/9", "tokens", np.zeros(1, np.int32))
    with pytest.raises(VersionGone, match="weights/9/t"):
        await plane.read("weights/9/t", "w", np.zeros(1, np.int32))


async def test_a_flipped_byte_is_found(plane: Plane):
    store, size = plane.store, 3 * MIB + 5
    array = store.reserve("flip", {"x": TensorSpec("uint8", (size,))})["x"]
    array[:] = random_bytes(size)
    await store.publish("flip")
    into = np.zeros_like(array)
    assert (await plane.read("flip", "x", into)).verified
    # Written after it was published: by its owner, or by whoever corrupts its memory.
    array[2 * MIB + 17] ^= 1
    with pytest.raises(ChecksumMismatch, match="block 2"):
        await plane.read("flip", "x", into)
    with pytest.raises(ChecksumMismatch, match="block 2"):
        await plane.read("flip", "x", into[:10], Box((2 * MIB,), (2 * MIB + 10,)))
    # Blocks that were not harmed can still be read.
    await plane.read("flip", "x", into[:MIB], Box((0,), (MIB,)))
    await store.remove("flip")


async def test_a_thread_with_a_loop_of_its_own_reads_too(plane: Plane):
    data = random_bytes(5 * MIB)
    await put_tensors(plane.store, "thread", {"x": data})
    into = np.zeros_like(data)
    failures: list[BaseException] = []

    async def read_here() -> None:
        redis = open_redis(plane.url)
        registry = Registry(redis, PREFIX, 60.0)
        async with await Dispatcher.create(registry, plane.config) as reader:
            await reader.read([Read(("thread",), "x", None, into)], READ_S)
        await redis.aclose()

    def run() -> None:
        try:
            asyncio.run(read_here())
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    await asyncio.to_thread(thread.join, READ_S)
    assert not failures and not thread.is_alive()
    assert_same(into, data)


@pytest.mark.parametrize("cores", [0.1, pytest.param(0.01, marks=pytest.mark.slow)])
async def test_idle_costs_nothing(plane: Plane, cores: float):
    await put_tensors(plane.store, "idle", {"x": random_bytes(MIB)})
    await plane.read("idle", "x", np.zeros(MIB, np.uint8))
    pids = [os.getpid(), *([server] if (server := serving_pid(plane.store)) else [])]
    await assert_sleeps(pids, wakeups_per_s=50, cores=cores)
    await plane.store.remove("idle")


async def test_totals_count_by_path(plane: Plane):
    await put_tensors(plane.store, "totals", {"x": random_bytes(1000)})
    async with await Dispatcher.create(plane.registry, plane.config) as reader:
        for _ in range(3):
            await reader.read([Read(("totals",), "x", None, np.zeros(1000, np.uint8))], READ_S)
        assert set(reader.totals) == {PATHS[plane.kind]}
        total = reader.totals[PATHS[plane.kind]]
        assert (total.size_bytes, total.transfers) == (3000, 3) and total.seconds > 0
