"""Lies about data and owners: each is an error with a type, and readers of other arenas do not notice it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from earl.dispatch import Box, Read, TensorSpec, TensorStore
from earl.dispatch.describe.regions import RegionRef
from earl.dispatch.memory.arena import Arena
from earl.dispatch.read.reader import Dispatcher
from earl.errors import (
    DataPlaneError,
    DescriptorMissing,
    KeyTaken,
    LayoutError,
    LayoutOverlap,
    RegionGone,
    TransportUnavailable,
)
from tests.support.content import MIB, random_bytes
from tests.support.dispatch import READ_S, Plane, changed, plane_fixtures, publish_descriptors

pytestmark = pytest.mark.asyncio(loop_scope="module")

opened, plane = plane_fixtures(["shm"], 8 * MIB)
SIZE = 5000


@asynccontextmanager
async def owner(plane: Plane, directory: Path, name: str, incarnation: int = 1) -> AsyncIterator[TensorStore]:
    """Another owner of the same registry, with an arena of its own."""
    arena = Arena.create(directory / "arenas", name, incarnation, MIB)
    async with TensorStore(arena, plane.registry, checksum=True) as store:
        yield store


async def put(
    store: TensorStore, key: str, values: np.ndarray, box: Box | None = None, length: int = SIZE
) -> None:
    store.reserve(key, {"x": TensorSpec("uint8", (length,), box)})["x"][:] = values
    await store.publish(key)


async def test_no_change_of_a_descriptor_is_ever_taken_for_data(plane: Plane):
    """Whatever stands in Redis instead: a read is refused, or its bytes are right."""
    data, redis = random_bytes(SIZE), plane.registry._redis
    await put(plane.store, "changed", data)
    await put(plane.store, "neighbour", random_bytes(SIZE, 1))
    name = plane.registry._key("changed")
    kept = await redis.get(name)
    neighbour = await redis.get(plane.registry._key("neighbour"))
    assert isinstance(kept, bytes) and isinstance(neighbour, bytes)
    rng, refused = random.Random(5), 0
    for turn in range(300):
        made = bytearray(kept)
        for _ in range(rng.randint(1, 4)):
            made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
        if not turn:
            made = bytearray(neighbour)
        await redis.set(name, bytes(made), px=60_000)
        into = np.zeros(SIZE, np.uint8)
        try:
            await plane.read("changed", "x", into)
            np.testing.assert_array_equal(into, data)
        except LayoutError:
            refused += 1
            assert not into.any()
    assert refused > 200
    await redis.delete(name)


async def test_what_is_named_as_an_arena_blocks_no_reader(plane: Plane, tmp_path: Path):
    data = random_bytes(SIZE)
    await put(plane.store, "healthy", data)
    (healthy,) = await plane.registry.get(["healthy"])
    os.mkfifo(tmp_path / "fifo")
    for number, path in enumerate([tmp_path / "fifo"] * 4 + [Path("/dev/zero"), tmp_path, tmp_path / "none"]):

        def elsewhere(region: RegionRef, path: Path = path) -> RegionRef:
            return dataclasses.replace(region, arena=dataclasses.replace(region.arena, path=str(path)))

        await publish_descriptors(plane.registry, [changed(healthy, f"lie/{number}", elsewhere)])
        with pytest.raises((RegionGone, TransportUnavailable)):
            await plane.read(f"lie/{number}", "x", np.zeros(SIZE, np.uint8))
    into = np.zeros(SIZE, np.uint8)
    await plane.read("healthy", "x", into)
    np.testing.assert_array_equal(into, data)


async def test_an_arena_that_was_truncated_before_a_read_is_gone_and_others_are_not(
    plane: Plane, tmp_path: Path
):
    data = random_bytes(SIZE)
    await put(plane.store, "whole", data)
    async with owner(plane, tmp_path, "short") as store:
        await put(store, "short", data)
        into = np.zeros(SIZE, np.uint8)
        await plane.read("short", "x", into)
        os.truncate(store.arena.ref.path, 4096)
        with pytest.raises(RegionGone, match="truncated"):
            await plane.read("short", "x", into)
        async with await Dispatcher.create(plane.registry, plane.config) as another:
            with pytest.raises(RegionGone, match="no arena"):
                await another.read([Read(("short",), "x", None, into)], READ_S)
        await plane.read("whole", "x", into)
        os.truncate(store.arena.ref.path, store.arena.ref.size_bytes)


async def test_a_key_has_one_owner_while_its_lease_lives(plane: Plane, tmp_path: Path):
    data = random_bytes(SIZE)
    into = np.zeros(SIZE, np.uint8)
    async with owner(plane, tmp_path, "first") as first, owner(plane, tmp_path, "second") as second:
        await put(first, "key", data)
        with pytest.raises(KeyTaken, match="key: published by another owner"):
            await put(second, "key", data[::-1])
        # The second one's ending takes nothing away from the first.
        await second.remove("key")
        await plane.read("key", "x", into)
        np.testing.assert_array_equal(into, data)
        await first.remove("key")
        await put(second, "key", data[::-1])
        await plane.read("key", "x", into)
        np.testing.assert_array_equal(into, data[::-1])


async def test_an_owner_that_is_refused_one_key_publishes_none(plane: Plane, tmp_path: Path):
    async with owner(plane, tmp_path, "first") as first, owner(plane, tmp_path, "second") as second:
        await put(first, "b", random_bytes(SIZE))
        for key in ("a", "b"):
            second.reserve(key, {"x": TensorSpec("uint8", (SIZE,))})
        with pytest.raises(KeyTaken):
            await second.publish(["a", "b"])
        with pytest.raises(DescriptorMissing):
            await plane.registry.get(["a"])
        await second.remove("b")
        await second.publish("a")


async def test_a_later_life_of_an_owner_takes_its_keys_over(plane: Plane, tmp_path: Path):
    data = random_bytes(SIZE)
    into = np.zeros(SIZE, np.uint8)
    async with owner(plane, tmp_path, "again", 2) as later:
        async with owner(plane, tmp_path, "again", 1) as earlier:
            await put(earlier, "life", data)
            await put(later, "life", data[::-1])
            assert await earlier._renew_tensors()
            # It does not hold the key any more, and neither renews nor removes it.
            assert not earlier._published()
        await plane.read("life", "x", into)
        np.testing.assert_array_equal(into, data[::-1])


async def test_sequences_have_one_owner_too(plane: Plane, tmp_path: Path):
    async with owner(plane, tmp_path, "first") as first, owner(plane, tmp_path, "second") as second:
        columns = [("tokens", "int32")]
        held, other = (store.sequences("trajectories/x/1", columns) for store in (first, second))
        held.reserve("1", 10)["tokens"][:] = 3
        await held.publish(["1"])
        other.reserve("2", 10)["tokens"][:] = 4
        with pytest.raises(KeyTaken, match="trajectories/x/1"):
            await other.publish(["2"])
        await other.remove(["2"])
        assert await plane.registry.keys("trajectories/x") == ["trajectories/x/1"]
        assert await plane.registry.sequences("trajectories/x/1") == {"1": 10}
    assert await plane.registry.keys("trajectories/x") == []
    with pytest.raises(DescriptorMissing):
        await plane.registry.sequences("trajectories/x/1")


async def test_owners_must_agree_on_what_both_hold(plane: Plane, tmp_path: Path):
    data, into = random_bytes(SIZE), np.zeros(SIZE, np.uint8)
    async with owner(plane, tmp_path, "first") as first, owner(plane, tmp_path, "second") as second:
        # Replicas: which of them is read does not matter, unless they differ.
        await put(first, "same/1", data)
        await put(second, "same/2", data)
        await plane.reader.read([Read(("same/1", "same/2"), "x", None, into)], READ_S)
        np.testing.assert_array_equal(into, data)
        await put(second, "other/2", np.where(np.arange(SIZE) == 4321, data ^ 1, data))
        with pytest.raises(
            LayoutError, match="same/1 and other/2 hold different values of the same elements, in x"
        ):
            await plane.reader.read([Read(("same/1", "other/2"), "x", None, into)], READ_S)
        # Boxes that have some elements in common are no replicas.
        await put(first, "low", data[:3000], Box((0,), (3000,)))
        await put(second, "high", data[2000:], Box((2000,), (SIZE,)))
        with pytest.raises(LayoutOverlap, match=r"both claim \[2000:3000\]"):
            await plane.reader.read([Read(("low", "high"), "x", None, into)], READ_S)


async def test_keys_are_listed_and_waited_for(plane: Plane):
    registry = plane.registry
    await put(plane.store, "list/a*[b]/2", random_bytes(SIZE))
    assert await registry.keys("list/a*[b]/") == ["list/a*[b]/2"]
    assert await registry.keys("list/a?") == []
    waiting = asyncio.create_task(registry.wait(["list/1", "list/a*[b]/2"], READ_S))
    await put(plane.store, "list/1", random_bytes(SIZE))
    await waiting
    assert await registry.keys("list/") == ["list/1", "list/a*[b]/2"]
    with pytest.raises(LayoutError, match="more than 1 keys begin with 'list/'"):
        await registry.keys("list/", limit=1)
    with pytest.raises(DescriptorMissing, match=r"under list/3 within 0\.01 s"):
        await registry.wait(["list/1", "list/3"], 0.01)
    assert issubclass(KeyTaken, DataPlaneError)
