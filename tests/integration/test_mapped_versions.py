"""A version is applied from where it lies, or from the worker's one copy; what was overwritten is noticed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from benchmarks.put_tensors import Placed, put_tensors, shard_box
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.cached_plan import Repeated, VersionRead
from earl.dispatch.read.mapped_version import MappedVersion, Outline
from earl.dispatch.read.reader import Dispatcher
from earl.errors import ChecksumMismatch, VersionGone
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.contract.weight_staging import StagedVersion
from services.rollout.pool.host_copy import HostCopy
from services.rollout.pool.replicas import Publication
from tests.support.content import MIB
from tests.support.dispatch import READ_S, Plane, plane_fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")

opened, plane = plane_fixtures(["ucx"], 8 * MIB)
SHAPES = {"embed": (50, 16), "q_proj": (17, 32), "norm": (7,)}
RUN = "contract"


def values(version: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(version)
    return {name: rng.integers(0, 1 << 16, shape).astype(np.uint16) for name, shape in SHAPES.items()}


async def publish(store: TensorStore, version: int, owners: int = 1) -> tuple[str, ...]:
    """Publishes a version, its rows over so many keys of one store; returns the keys."""
    keys = []
    for owner in range(owners):
        boxes = {name: shard_box(shape, 0, owner, owners) for name, shape in SHAPES.items()}
        placed: dict[str, np.ndarray | Placed] = {
            name: Placed(np.ascontiguousarray(array[boxes[name].slices()]), SHAPES[name], boxes[name])
            for name, array in values(version).items()
        }
        keys.append(f"weights/{version}/trainer-{owner}")
        await put_tensors(store, keys[-1], placed, version)
    return tuple(keys)


def outline() -> tuple[Outline, Repeated]:
    made = Outline({name: (shape, numpy_dtype("bfloat16")) for name, shape in SHAPES.items()})
    return made, Repeated((name, None, array) for name, array in made.arrays.items())


async def mapped(reader: Dispatcher, keys: tuple[str, ...]) -> tuple[StagedVersion, MappedVersion]:
    made, slices = outline()
    version = await reader.map(VersionRead(keys, slices), READ_S)
    return StagedVersion(1, dict.fromkeys(SHAPES, "bfloat16"), SHAPES, made, version), version


@pytest.mark.parametrize("owners", [1, 3])
async def test_a_version_is_given_from_where_it_lies(plane: Plane, owners: int):
    keys = await publish(plane.store, 1, owners)
    staged, version = await mapped(plane.reader, keys)
    assert version.size_bytes == sum(array.nbytes for array in values(1).values())
    memory = version.parts[0].arena.memory
    for name, array, dtype in staged.tensors():
        assert dtype == "bfloat16"
        np.testing.assert_array_equal(array, values(1)[name])
        # One owner's tensors lie there whole: nothing is copied for the reader.
        assert np.shares_memory(array, memory) == (owners == 1)
    staged.confirm()


async def test_what_was_overwritten_meanwhile_is_not_confirmed(plane: Plane):
    keys = await publish(plane.store, 1)
    staged, version = await mapped(plane.reader, keys)
    list(staged.tensors())
    version.check()
    await plane.store.remove(keys)
    for attempt in (version.check, version.confirm):
        with pytest.raises(VersionGone, match="owner"):
            attempt()
    # The next version lies in the same place: it is not taken for the one before.
    await publish(plane.store, 2)
    with pytest.raises(VersionGone):
        version.confirm()


async def test_digests_are_compared_when_a_version_is_found_and_when_it_was_copied(plane: Plane):
    async with await Dispatcher.create(plane.registry, DataPlaneConfig()) as reader:
        keys = await publish(plane.store, 1)
        _, version = await mapped(reader, keys)
        version.confirm()
        region = plane.store._entries[keys[0]].region
        region.array(np.uint8, (1,), 5)[0] ^= 1
        with pytest.raises(ChecksumMismatch):
            version.confirm()
        with pytest.raises(ChecksumMismatch):
            await mapped(reader, keys)


async def test_places_without_memory_are_as_large_as_any_model():
    made = Outline({"a": ((1 << 20, 1 << 18), np.dtype(np.uint16)), "b": ((3,), np.dtype(np.float32))})
    assert made.arrays["a"].nbytes == 1 << 39 and made.arrays["b"].shape == (3,)


@pytest_asyncio.fixture(loop_scope="module")
async def copy(plane: Plane, tmp_path: Path) -> AsyncIterator[HostCopy]:
    """The copy of a worker that may map no arena, so that a version reaches it over the wire."""
    made = HostCopy(
        EngineSpec(
            name="rollout-0",
            model_dir="",
            redis_url=plane.url,
            run=RUN,
            data_plane=plane.config.model_dump_json(),
            arena_dir=str(tmp_path / "arenas"),
        )
    )
    yield made
    await made.close()
    assert not list((tmp_path / "arenas").glob("*"))


async def test_a_version_of_another_host_is_read_once_for_all_engines(plane: Plane, copy: HostCopy):
    given: list[Publication] = []
    for version in (1, 2):
        keys = await publish(plane.store, version, 2)
        publication = Publication(version, version, keys)
        given.append(await copy.bring(publication, READ_S))
        # Asked again, nothing is read again; and engines do not need the trainer any more.
        await plane.store.remove(keys)
        assert await copy.bring(publication, READ_S) == given[-1]
        staged, _ = await mapped(plane.reader, given[-1].keys)
        assert {name: array.tolist() for name, array, _ in staged.tensors()} == {
            name: array.tolist() for name, array in values(version).items()
        }
        staged.confirm()
        (transfers,) = copy.transfers
        size_bytes = sum(array.nbytes for array in values(1).values())
        assert (transfers.path, transfers.size_bytes) == ("ucx-tcp", version * size_bytes)
    # The copy of the version before made room for this one.
    with pytest.raises(VersionGone):
        await mapped(plane.reader, given[0].keys)


async def test_a_copy_that_failed_leaves_nothing_to_load(plane: Plane, copy: HostCopy):
    with pytest.raises(VersionGone):
        await copy.bring(Publication(1, 7, ("weights/7/trainer-0",)), READ_S)
    keys = await publish(plane.store, 3)
    assert (await copy.bring(Publication(2, 3, keys), READ_S)).keys != keys


async def test_engines_are_given_the_trainers_memory_where_they_can_map_it(plane: Plane, tmp_path: Path):
    """Engines that other projects wrote are given whole tensors: those of several ranks are copied."""
    keys = await publish(plane.store, 1, 2)
    publication = Publication(1, 1, keys)
    for engine, direct in (("torch", True), ("vllm", False)):
        made = HostCopy(
            EngineSpec(
                name=engine,
                model_dir="",
                engine=engine,
                redis_url=plane.url,
                run=RUN,
                data_plane=DataPlaneConfig().model_dump_json(),
                arena_dir=str(tmp_path / "arenas"),
            )
        )
        try:
            assert ((await made.bring(publication, READ_S)) == publication) == direct
        finally:
            await made.close()
