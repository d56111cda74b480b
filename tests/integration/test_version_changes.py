"""Versions by what changed: two trainer arenas, each with a serving process, and readers in other layouts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.changes.record import TABLE, changes_key
from earl.dispatch.describe.descriptor import only_region
from earl.dispatch.describe.tensor_classes import classes_of
from earl.dispatch.layout.box import Box
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import placement_boxes
from earl.dispatch.publish.changes import ChangesPublisher
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.changes import published_regions, read_changes
from earl.dispatch.read.reader import Dispatcher, Read
from earl.dispatch.registry.registry import Registry
from earl.errors import ChangesUnusable, VersionGone
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.pool.host_copy import CopyReads, HostCopy
from services.rollout.pool.replicas import Publication
from tests.support.content import MIB
from tests.support.dispatch import READ_S, Plane, plane_fixtures
from tests.support.preloaded import preloaded

pytestmark = pytest.mark.asyncio(loop_scope="module")

opened, plane = plane_fixtures(["ucx"], 12 * MIB)
RANKS, RUN, FRACTION = 4, "contract", 0.3
OWNERS = tuple(map(str, range(RANKS)))
# Mesh (tp, dp): columns over tp and rows over dp; rows over both; the same on every tp rank.
LAYOUTS = {
    "layers.0.w": MeshLayout((600, 400), (2, 2), (("shard", 1), ("shard", 0)), OWNERS),
    "layers.1.w": MeshLayout((600, 400), (2, 2), (("shard", 1), ("shard", 0)), OWNERS),
    "embed": MeshLayout((1001, 256), (2, 2), (("shard", 0), ("shard", 0)), OWNERS),
    "norm": MeshLayout((64,), (2, 2), (("replicate",), ("shard", 0)), OWNERS),
}
Values = dict[str, np.ndarray]


def first() -> Values:
    rng = np.random.default_rng(1)
    return {
        name: rng.integers(0, 1 << 16, layout.shape).astype(np.uint16) for name, layout in LAYOUTS.items()
    }


def after(values: Values, fraction: float) -> Values:
    """The next version, of which about this part differs."""
    rng = np.random.default_rng(int(1000 * fraction))
    return {
        n: np.where(rng.random(v.shape) < fraction, v ^ 1, v).astype(np.uint16) for n, v in values.items()
    }


@dataclass
class TrainerRanks:
    """Four ranks on two arenas."""

    stores: list[TensorStore]
    coders: list[ChangesPublisher]
    registry: Registry

    async def publish(self, version: int, values: Values) -> tuple[str, ...]:
        keys = tuple(f"weights/{version}/trainer-{rank}" for rank in range(RANKS))
        for rank, (key, coder) in enumerate(zip(keys, self.coders, strict=True)):
            store = self.stores[rank // 2]
            held = [(each, rank) for each in classes_of({n: ("bfloat16", one) for n, one in LAYOUTS.items()})]
            arrays = store.reserve_classes(key, held, version)
            for name, array in arrays.items():
                layout = LAYOUTS[name]
                (box,) = placement_boxes(
                    layout.shape, layout.mesh_shape, layout.placements, layout.coordinates(rank)
                )
                array[...] = values[name][box.slices()]
            changes = await coder.code(key, version, held, arrays)
            descriptor, *_ = await store.publish([key, *changes])
            coder.published(descriptor, held, arrays)
        return keys

    async def withdraw(self, keys: Iterable[str]) -> None:
        for store in self.stores:
            await store.remove([some for key in keys for some in (key, changes_key(key))])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def second(opened: Plane, tmp_path_factory) -> AsyncIterator[TensorStore]:
    arenas = tmp_path_factory.mktemp("second")
    with preloaded():
        store = await TensorStore.open(
            opened.registry, opened.config, arenas, "another", incarnation=1, size_bytes=12 * MIB
        )
    async with store:
        yield store


@pytest_asyncio.fixture(loop_scope="module")
async def ranks(plane: Plane, second: TensorStore) -> AsyncIterator[TrainerRanks]:
    stores = [plane.store, second]
    size_bytes = int(FRACTION * sum(2 * np.prod(layout.shape) for layout in LAYOUTS.values()) / RANKS)
    coders = [ChangesPublisher(stores[rank // 2], size_bytes) for rank in range(RANKS)]
    yield TrainerRanks(stores, coders, plane.registry)
    await second.remove(second.keys)


def copy_of(plane: Plane, tmp_path: Path, name: str = "rollout-0") -> HostCopy:
    """A worker's copy, over the wire alone, as on another host."""
    config = plane.config.model_copy(update={"changes_fraction": FRACTION})
    return HostCopy(
        EngineSpec(
            name=name,
            model_dir="",
            redis_url=plane.url,
            run=RUN,
            data_plane=config.model_dump_json(),
            arena_dir=str(tmp_path / "arenas"),
        )
    )


@pytest_asyncio.fixture(loop_scope="module")
async def copy(plane: Plane, tmp_path: Path) -> AsyncIterator[HostCopy]:
    made = copy_of(plane, tmp_path)
    yield made
    await made.close()


async def content(plane: Plane, publication: Publication) -> tuple[Values, tuple[int, ...]]:
    """(what engines are given, the digests of it as published)."""
    arrays = {name: np.zeros(layout.shape, np.uint16) for name, layout in LAYOUTS.items()}
    async with await Dispatcher.create(plane.registry, DataPlaneConfig()) as reader:
        await reader.read([Read(publication.keys, n, None, array) for n, array in arrays.items()], READ_S)
    (descriptor,) = await plane.registry.get(list(publication.keys))
    region = only_region(descriptor)
    assert region is not None and region.checksums
    return arrays, region.checksums


def assert_equal(actual: Values, expected: Values) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, name)


async def test_a_copy_follows_by_changes_alone(
    plane: Plane, ranks: TrainerRanks, copy: HostCopy, tmp_path: Path
):
    """To the digests of a late one, which reads the whole; through versions that take others' places."""
    values, previous = first(), ()
    version, keys, digests = 0, (), ()
    for version, fraction in ((1, 0.0), (2, 0.01), (3, 0.05), (4, 0.0)):
        values = after(values, fraction)
        keys = await ranks.publish(version, values)
        given = await copy.bring(Publication(version, version, keys), READ_S)
        actual, digests = await content(plane, given)
        assert_equal(actual, values)
        await ranks.withdraw(previous)
        previous = keys
    late = copy_of(plane, tmp_path, "late")
    assert (await content(plane, await late.bring(Publication(1, version, keys), READ_S)))[1] == digests
    assert (late.reads.whole, late.reads.changes) == (1, 0)
    await late.close()
    reads = copy.reads
    assert (reads.whole, reads.changes, reads.refused) == (1, 3, 0)
    # A hundredth and a twentieth of the elements, and nothing: in each 8 times and more below the whole.
    assert 0 < reads.changes_bytes < 3 * reads.whole_bytes / 8


async def test_a_reader_of_other_slices_reads_what_concerns_them(plane: Plane, ranks: TrainerRanks):
    """One of two engine ranks: upper rows of the layers, and the lower ones of the embedding."""
    boxes = {
        "layers.0.w": Box((0, 0), (300, 400)),
        "embed": Box((501, 0), (1001, 256)),
        "norm": Box((0,), (64,)),
    }
    old = first()
    new = after(old, 0.02)
    keys = await ranks.publish(1, old)
    held = await published_regions(plane.registry, keys)
    keys = await ranks.publish(2, new)
    arrays = {name: old[name][box.slices()].copy() for name, box in boxes.items()}
    slices = [(name, boxes[name], array) for name, array in arrays.items()]
    changes = await read_changes(plane.registry, plane.reader, keys, held, slices, READ_S)
    assert_equal(arrays, {name: old[name][box.slices()] for name, box in boxes.items()})
    changes.apply()
    assert_equal(arrays, {name: new[name][box.slices()] for name, box in boxes.items()})
    assert changes.regions == await published_regions(plane.registry, keys)
    whole = [(name, None, array) for name, array in first().items()]
    everything = await read_changes(plane.registry, plane.reader, keys, held, whole, READ_S)
    assert changes.size_bytes < 0.6 * everything.size_bytes


async def test_changes_of_another_base_are_refused_and_the_whole_is_read(
    plane: Plane, ranks: TrainerRanks, copy: HostCopy
):
    values = first()
    keys = await ranks.publish(1, values)
    held = await published_regions(plane.registry, keys)
    await copy.bring(Publication(1, 1, keys), READ_S)
    await ranks.publish(2, after(values, 0.03))
    keys = await ranks.publish(3, after(values, 0.01))
    arrays = first()
    slices = [(name, None, array) for name, array in arrays.items()]
    with pytest.raises(ChangesUnusable, match=r"lead on from version \[2\]"):
        await read_changes(plane.registry, plane.reader, keys, held, slices, READ_S)
    assert_equal(arrays, values)
    given = await copy.bring(Publication(2, 3, keys), READ_S)
    assert_equal((await content(plane, given))[0], after(values, 0.01))
    assert (copy.reads.whole, copy.reads.changes, copy.reads.refused) == (2, 0, 1)


@pytest.mark.parametrize("after_sealing", [True, False])
async def test_damaged_changes_are_refused_and_the_whole_is_read(
    plane: Plane, ranks: TrainerRanks, copy: HostCopy, after_sealing: bool
):
    """Damaged in memory, which the transport's digests tell; or coded wrong, which those of blocks do."""
    values = first()
    keys = await ranks.publish(1, values)
    held = await published_regions(plane.registry, keys)
    await copy.bring(Publication(1, 1, keys), READ_S)
    keys = await ranks.publish(2, after(values, 0.01))
    store, damaged = ranks.stores[1], changes_key(keys[2])
    entry = store._entries[damaged]
    table = entry.region.array(np.uint64, (1, 4), entry.offsets[TABLE])
    table[0, 3] ^= np.uint64(1 << 40)
    if not after_sealing:
        await store.reopen(damaged, damaged, 2)
        await store.publish(damaged)
        arrays = first()
        slices = [(name, None, array) for name, array in arrays.items()]
        with pytest.raises(ChangesUnusable, match="digest"):
            await read_changes(plane.registry, plane.reader, keys, held, slices, READ_S)
        assert_equal(arrays, values)
    given = await copy.bring(Publication(2, 2, keys), READ_S)
    assert_equal((await content(plane, given))[0], after(values, 0.01))
    assert (copy.reads.whole, copy.reads.changes, copy.reads.refused) == (2, 0, 1)
    # The next one's changes lead on from what was read whole.
    keys = await ranks.publish(3, after(values, 0.02))
    given = await copy.bring(Publication(3, 3, keys), READ_S)
    assert_equal((await content(plane, given))[0], after(values, 0.02))
    assert (copy.reads.whole, copy.reads.changes, copy.reads.refused) == (2, 1, 1)


async def test_without_changes_of_every_rank_the_whole_is_read(
    plane: Plane, ranks: TrainerRanks, copy: HostCopy
):
    values = first()
    await copy.bring(Publication(1, 1, await ranks.publish(1, values)), READ_S)
    # Every element of what one rank holds: more than is published.
    new = after(values, 0.01)
    new["layers.0.w"][:300, :200] ^= 2
    new["layers.1.w"][:300, :200] ^= 2
    keys = await ranks.publish(2, new)
    with pytest.raises(VersionGone, match="trainer-0/changes is not"):
        await plane.registry.get([changes_key(key) for key in keys])
    given = await copy.bring(Publication(2, 2, keys), READ_S)
    assert_equal((await content(plane, given))[0], new)
    assert copy.reads == CopyReads(2, 0, 0, copy.reads.whole_bytes, 0)
