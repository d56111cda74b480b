"""Renewals of descriptors, with a registry that loses every lease at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.put_tensors import put_tensors
from earl.config.data_plane import GRAIN_BYTES
from earl.dispatch.describe.tensor_classes import classes_of
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.memory.allocator import occupied
from earl.dispatch.memory.arena import Arena
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.registry.registry import Registry

TEST_S = 20.0


class Lapsing(Registry):
    """Every renewal finds every key lapsed. during: awaited inside the call of that name, once."""

    def __init__(self) -> None:
        self.lease_s = 0.003
        self.known: dict[str, bytes] = {}
        self.renewals: asyncio.Queue[list[str]] = asyncio.Queue()
        self.during: dict[str, Callable[[], Coroutine]] = {}

    async def _meanwhile(self, call: str) -> None:
        act = self.during.pop(call, None)
        if act is not None:
            await act()

    async def renew_held(self, keys: Sequence[str], mark: bytes) -> tuple[list[str], list[str]]:
        await self._meanwhile("renew_held")
        self.renewals.put_nowait(list(keys))
        return list(keys), []

    async def publish_encoded(
        self, descriptors: Mapping[str, bytes], mark: bytes = b"", *, replace: bool = False
    ) -> None:
        await self._meanwhile("publish_encoded")
        self.known.update(descriptors)

    async def release(self, keys: Iterable[str], mark: bytes) -> None:
        for key in keys:
            self.known.pop(key, None)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TensorStore]:
    arena = Arena.create(tmp_path, "o", 1, 1 << 16)
    async with TensorStore(arena, Lapsing()) as store:
        for key in ("stays", "goes"):
            await put_tensors(store, key, {"x": np.arange(9)})
        yield store


async def renewed_without(registry: Lapsing, key: str) -> None:
    """Two renewals in a row that leave the key out: what the one before published has been mended."""
    # Renewals from before the key was published leave it out too.
    while not registry.renewals.empty():
        registry.renewals.get_nowait()
    async with asyncio.timeout(TEST_S):
        for _ in range(2):
            while key in await registry.renewals.get():
                pass


@pytest.mark.parametrize("action", ["withhold", "remove"])
@pytest.mark.parametrize("call", ["", "renew_held", "publish_encoded"])
async def test_what_was_withdrawn_never_comes_back(store: TensorStore, action: str, call: str) -> None:
    registry = store._registry
    assert isinstance(registry, Lapsing)
    withdraw = getattr(store, action)
    free = store.arena.free_bytes
    if call:
        registry.during[call] = lambda: withdraw("goes")
    else:
        await withdraw("goes")
    await renewed_without(registry, "goes")
    assert list(registry.known) == ["stays"]
    assert ("goes" in store.keys) == (action == "withhold")
    assert (store.arena.free_bytes == free) == (action == "withhold")


async def test_a_withheld_key_is_freed_like_any_other(store: TensorStore) -> None:
    await store.withhold(["goes", "never held"])
    await store.remove("goes")
    assert store.keys == ["stays"]


async def test_slots_of_one_room_take_turns_whatever_lies_in_them(tmp_path: Path) -> None:
    def held(length: int) -> list:
        layout = MeshLayout((length,), (1,), (("replicate",),), ("0",))
        return [(one, 0) for one in classes_of({"x": ("uint8", layout)})]

    small, large = 8 * GRAIN_BYTES, 8 * GRAIN_BYTES + 64
    arena = Arena.create(tmp_path, "o", 1, 2 * occupied(large))
    async with TensorStore(arena, Lapsing()) as store:
        for version, size in enumerate((small, large, large, small, large, small, small, large)):
            if version >= 2:
                await store.remove([f"v{version - 2}"])
            arrays = store.reserve_classes(f"v{version}", held(size), version, large)
            assert arrays["x"].nbytes == size
