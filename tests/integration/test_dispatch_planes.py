"""The data plane over real processes: resharding, leases, restarts, nothing left behind."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks.put_tensors import Placed, put_tensors, shard_box
from earl.dispatch.memory.arena import Arena
from earl.dispatch.memory.arena_file import arena_directory
from earl.dispatch.publish.tensor_store import TensorSpec, TensorStore
from earl.dispatch.read.reader import Dispatcher, Read
from earl.dispatch.registry import codec
from earl.dispatch.registry.registry import Registry
from earl.errors import ArenaFull, DescriptorMissing, LayoutError, LayoutGap, VersionGone
from tests.support.content import MIB, random_bytes
from tests.support.dispatch import (
    PREFIX,
    READ_S,
    OwnerProcess,
    Plane,
    changed,
    plane_fixtures,
    publish_descriptors,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


opened, plane = plane_fixtures(["shm", "ucx"], 64 * MIB)


async def test_three_owners_reshard_to_two_readers(plane: Plane, tmp_path: Path):
    """FSDP over 3 ranks, uneven, to tensor parallel over 2: rows cut as torch.chunk, then columns."""
    shapes = {"embed": (50, 16), "q_proj": (17, 32), "norm": (7,)}
    rng = np.random.default_rng(4)
    whole = {name: rng.integers(0, 1 << 16, shape).astype(np.uint16) for name, shape in shapes.items()}
    keys = tuple(f"weights/3/trainer-{rank}" for rank in range(3))
    arenas = arena_directory(plane.config, tmp_path)
    stores = [
        await TensorStore.open(
            plane.registry, plane.config, arenas, f"trainer-{rank}", incarnation=1, size_bytes=MIB
        )
        for rank in range(3)
    ]
    for rank, store in enumerate(stores):
        boxes = {name: shard_box(shape, 0, rank, 3) for name, shape in shapes.items()}
        specs = {name: TensorSpec("bfloat16", shapes[name], box) for name, box in boxes.items()}
        for name, array in store.reserve(keys[rank], specs, version=3).items():
            array[...] = whole[name][boxes[name].slices()]
        await store.publish(keys[rank])
    for index in range(2):
        reads = []
        for name, shape in shapes.items():
            box = shard_box(shape, len(shape) - 1, index, 2)
            reads.append(Read(keys, name, box, np.zeros(box.shape, np.uint16)))
        await plane.reader.read(reads, READ_S)
        for read in reads:
            assert read.box is not None
            np.testing.assert_array_equal(read.into, whole[read.name][read.box.slices()])
    with pytest.raises(LayoutGap, match="embed"):
        await plane.reader.read([Read(keys[:2], "embed", None, np.zeros((50, 16), np.uint16))], READ_S)
    await stores[1].remove(keys[1])
    with pytest.raises(VersionGone, match="trainer-1"):
        await plane.reader.read([Read(keys, "norm", None, np.zeros(7, np.uint16))], READ_S)
    for store in stores:
        await store.close()
    assert not arenas.exists()


async def published(registry: Registry, key: str) -> None:
    """Returns once the key's descriptor can be read: one that lapsed or was lost is published again."""
    async with asyncio.timeout(READ_S):
        while True:
            try:
                await registry.get([key])
                return
            except DescriptorMissing:
                continue


async def test_a_dead_owners_descriptors_lapse_and_its_file_goes(plane: Plane, tmp_path: Path):
    owner = await OwnerProcess.start(plane.config, plane.url, PREFIX, tmp_path, "mortal", MIB, lease_s=0.5)
    await published(plane.registry, owner.key)
    await owner.kill()
    async with asyncio.timeout(READ_S):
        with pytest.raises(DescriptorMissing):
            while True:
                await plane.registry.get([owner.key])
    assert list(owner.directory.glob("mortal-*"))
    successor = Arena.create(owner.directory, "mortal", 12, 4096)
    assert [path.name for path in owner.directory.iterdir()] == ["mortal-000000000000000c.arena"]
    successor.close()


async def test_descriptors_that_redis_lost_are_published_again(plane: Plane):
    registry = Registry(plane.registry._redis, PREFIX, 0.3)
    store = TensorStore(plane.store.arena, registry)
    await put_tensors(store, "lost", {"x": random_bytes(10)})
    await registry.remove(["lost"])
    await published(registry, "lost")
    await store.remove("lost")
    assert store._renewing is not None
    store._renewing.cancel()


async def test_a_full_arena_keeps_nothing_of_a_failed_put(plane: Plane):
    free = plane.store.arena.free_bytes
    with pytest.raises(ArenaFull):
        await put_tensors(plane.store, "large", {"x": random_bytes(65 * MIB)})
    assert plane.store.arena.free_bytes == free and not plane.store.keys
    with pytest.raises(LayoutError, match="was never reserved"):
        await plane.store.publish("large")


async def test_placed_arrays_must_match_their_box(plane: Plane):
    with pytest.raises(LayoutError, match="for box"):
        await put_tensors(
            plane.store,
            "wrong",
            {"x": Placed(np.zeros((3, 4), np.float32), (8, 4), shard_box((8, 4), 0, 0, 2))},
        )
    assert not plane.store.keys


async def test_control_plane_bytes_do_not_grow_with_the_sequence(plane: Plane):
    sizes = []
    for tokens in (1000, 2000, 100_000):
        columns = {"tokens": np.zeros(tokens, np.int32), "logprobs": np.zeros(tokens, np.float32)}
        descriptor = await put_tensors(plane.store, "trajectory/1/1", columns)
        sizes.append(len(codec.encode(descriptor)))
        await plane.store.remove("trajectory/1/1")
    assert max(sizes) <= 1.05 * min(sizes)


async def test_auto_prefers_shared_memory_and_falls_back_to_the_wire(plane: Plane):
    config = plane.config.model_copy(update={"transport": "auto"})
    data = random_bytes(5000)
    descriptor = await put_tensors(plane.store, "auto", {"x": data})
    async with await Dispatcher.create(plane.registry, config) as reader:
        into = np.zeros_like(data)
        receipt = await reader.read([Read(("auto",), "x", None, into)], READ_S)
        assert receipt.path == "shm"
        if plane.kind == "ucx":
            # As seen from another machine, or from a container without this /dev/shm.
            def elsewhere(region):
                return dataclasses.replace(region, arena=dataclasses.replace(region.arena, path="/none"))

            await publish_descriptors(plane.registry, [changed(descriptor, "far", elsewhere)])
            into[:] = 0
            receipt = await reader.read([Read(("far",), "x", None, into)], READ_S)
            assert receipt.path == "ucx-tcp"
        np.testing.assert_array_equal(into, data)
