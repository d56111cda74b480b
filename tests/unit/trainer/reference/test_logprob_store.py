"""Checks that a rank of the reference stage drops what it holds when its trajectories are gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

import pytest

from earl.dispatch.layout.box import Box
from earl.dispatch.memory.arena import Arena
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.registry.registry import Registry
from services.trainer.reference import logprob_store as module
from services.trainer.reference.logprob_store import LogprobStore


class Known(Registry):
    """A registry that keeps descriptors here."""

    lease_s = 60.0

    def __init__(self) -> None:
        self.known: set[str] = set()

    async def publish_encoded(
        self, descriptors: Mapping[str, bytes], mark: bytes = b"", *, replace: bool = False
    ) -> None:
        self.known.update(descriptors)

    async def release(self, keys: Iterable[str], mark: bytes) -> None:
        self.known.difference_update(keys)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TensorStore]:
    async with TensorStore(Arena.create(tmp_path, "reference-0", 1, 1 << 20), Known()) as store:
        yield store


async def put(logprobs: LogprobStore, key: str, *trajectories: str) -> None:
    assert await logprobs.reserve(key, trajectories, 100, Box((0,), (100,))) is not None
    await logprobs.publish()


async def test_a_lease_goes_with_the_last_of_its_trajectories(store: TensorStore):
    logprobs = LogprobStore(store)
    await put(logprobs, "one", "a", "b")
    await put(logprobs, "two", "c")
    await logprobs.free(["a", "c", "never here"])
    assert store.keys == ["one"]
    await logprobs.free(["b"])
    assert store.keys == [] and logprobs.used_fraction == 0


async def test_what_was_dropped_before_it_is_published_goes_at_once(store: TensorStore):
    logprobs = LogprobStore(store)
    await logprobs.free(["dropped while its lease was on the way"])
    await put(logprobs, "one", "a", "dropped while its lease was on the way")
    assert await logprobs.reserve("two", ["b"], 100, Box((0,), (100,))) is not None
    await logprobs.free(["a", "b"])
    assert store.keys == ["two"]
    await logprobs.publish()
    assert store.keys == []


async def test_what_is_computed_again_replaces_what_was_held(store: TensorStore):
    logprobs = LogprobStore(store)
    await put(logprobs, "one", "a", "b")
    await put(logprobs, "two", "b", "a")
    assert store.keys == ["two"]


async def test_so_many_ends_are_remembered_and_no_more(store: TensorStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REMEMBERED", 2)
    logprobs = LogprobStore(store)
    await logprobs.free(["a", "b", "c"])
    for trajectory in "abc":
        await put(logprobs, trajectory, trajectory)
    assert store.keys == ["a"]


async def test_credit_is_what_fits_in_one_piece_and_leaves_half(store: TensorStore):
    logprobs = LogprobStore(store)
    assert logprobs.free_tokens == store.arena.capacity_bytes // 8
    held = [store.arena.allocate(1 << 18) for _ in range(4)]
    held[0].free()
    held[2].free()
    assert logprobs.free_tokens == (1 << 18) // 4
    array = await logprobs.reserve("most", ["a"], logprobs.free_tokens, Box((0,), (logprobs.free_tokens,)))
    assert array is not None
