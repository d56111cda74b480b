"""What a rank of the reference stage holds goes when its trajectories do, whenever it hears of that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

import pytest

from earl.dispatch.layout.box import Box
from earl.dispatch.memory.arena import Arena
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.registry.registry import Registry
from services.trainer.reference import shelf as module
from services.trainer.reference.shelf import Shelf


class Known(Registry):
    """A registry that keeps descriptors here."""

    lease_s = 60.0

    def __init__(self) -> None:
        self.keys: set[str] = set()

    async def publish_encoded(self, descriptors: Mapping[str, bytes]) -> None:
        self.keys.update(descriptors)

    async def remove(self, keys: Iterable[str]) -> None:
        self.keys.difference_update(keys)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TensorStore]:
    async with TensorStore(Arena.create(tmp_path, "reference-0", 1, 1 << 20), Known()) as store:
        yield store


async def put(shelf: Shelf, key: str, *trajectories: str) -> None:
    assert await shelf.reserve(key, trajectories, 100, Box((0,), (100,))) is not None
    await shelf.publish()


async def test_a_lease_goes_with_the_last_of_its_trajectories(store: TensorStore):
    shelf = Shelf(store)
    await put(shelf, "one", "a", "b")
    await put(shelf, "two", "c")
    await shelf.free(["a", "c", "never here"])
    assert store.keys == ["one"]
    await shelf.free(["b"])
    assert store.keys == [] and shelf.used_fraction == 0


async def test_what_was_dropped_before_it_is_published_goes_at_once(store: TensorStore):
    shelf = Shelf(store)
    await shelf.free(["dropped while its lease was on the way"])
    await put(shelf, "one", "a", "dropped while its lease was on the way")
    assert await shelf.reserve("two", ["b"], 100, Box((0,), (100,))) is not None
    await shelf.free(["a", "b"])
    assert store.keys == ["two"]
    await shelf.publish()
    assert store.keys == []


async def test_what_is_computed_again_replaces_what_was_held(store: TensorStore):
    shelf = Shelf(store)
    await put(shelf, "one", "a", "b")
    await put(shelf, "two", "b", "a")
    assert store.keys == ["two"]


async def test_so_many_ends_are_remembered_and_no_more(store: TensorStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REMEMBERED", 2)
    shelf = Shelf(store)
    await shelf.free(["a", "b", "c"])
    for trajectory in "abc":
        await put(shelf, trajectory, trajectory)
    assert store.keys == ["a"]


async def test_credit_is_what_fits_in_one_piece_and_leaves_half(store: TensorStore):
    shelf = Shelf(store)
    assert shelf.free_tokens == store.arena.capacity_bytes // 8
    held = [store.arena.allocate(1 << 18) for _ in range(4)]
    held[0].free()
    held[2].free()
    assert shelf.free_tokens == (1 << 18) // 4
    array = await shelf.reserve("most", ["a"], shelf.free_tokens, Box((0,), (shelf.free_tokens,)))
    assert array is not None
