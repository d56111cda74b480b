"""The slices of version after version, over every transport, out of two slots in turn."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.put_tensors import put_tensors
from earl.dispatch.describe.tensor_classes import TensorClass
from earl.dispatch.layout.box import Box
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.read.reader import Repeated, VersionRead
from earl.errors import RegionGone, VersionGone
from tests.support.dispatch import PATHS, READ_S, Plane, plane_fixtures, publish_descriptors

pytestmark = pytest.mark.asyncio(loop_scope="module")

LAYERS, ROWS, COLUMNS = 3, 512, 384
CLASS = TensorClass(
    "h.{}.w", "float32", MeshLayout((LAYERS, ROWS, COLUMNS), (1,), (("replicate",),), ("a",), 1)
)
BOX = Box((8, 4), (ROWS, COLUMNS - 12))


opened, plane = plane_fixtures()


def key(version: int) -> str:
    return f"weights/{version}/a"


async def publish(plane: Plane, version: int) -> np.ndarray:
    """[LAYERS, ROWS, COLUMNS], into the place of the version before last."""
    await plane.store.remove(key(version - 2))
    values = np.random.default_rng(version).standard_normal((LAYERS, ROWS, COLUMNS)).astype(np.float32)
    arrays = plane.store.reserve_classes(key(version), [(CLASS, 0)], version)
    for layer, array in enumerate(values):
        arrays[f"h.{layer}.w"][:] = array
    await plane.store.publish(key(version))
    return values


async def test_each_version_arrives_and_one_that_is_gone_spoils_none(plane: Plane):
    into = np.zeros((LAYERS, *BOX.shape), np.float32)
    slices = Repeated((f"h.{layer}.w", BOX, into[layer]) for layer in range(LAYERS))
    for version in range(1, 6):
        values = await publish(plane, version)
        receipt = await plane.reader.read([VersionRead((key(version),), slices)], READ_S)
        np.testing.assert_array_equal(into, values[:, *BOX.slices()])
        assert receipt.size_bytes_by_path == {PATHS[plane.kind]: into.nbytes}
        assert receipt.verified
    with pytest.raises(VersionGone):
        await plane.reader.read([VersionRead((key(3),), slices)], READ_S)
    stale = await plane.registry.get([key(5)])
    await publish(plane, 6)
    await publish(plane, 7)  # where 5 was
    await publish_descriptors(plane.registry, stale)
    into[:] = 0
    with pytest.raises(VersionGone):
        await plane.reader.read([VersionRead((key(5),), slices)], READ_S)
    values = await publish(plane, 8)
    await plane.reader.read([VersionRead((key(8),), slices)], READ_S)
    np.testing.assert_array_equal(into, values[:, *BOX.slices()])
    await plane.registry.remove([key(5)])


async def test_plain_tensors_are_read_again_by_one_plan_wherever_they_lie_now(plane: Plane):
    # Half rows of 64 KiB, longer than what any wire gathers, and thin ones of another tensor beside them.
    rows, columns = 24, 1 << 14
    forms = {"wide": ("int32", (rows, columns)), "thin": ("float64", (rows, 40))}
    boxes = {"wide": Box((3, columns // 2), (rows, columns)), "thin": Box((1, 7), (rows, 20))}
    into = {name: np.zeros(box.shape, forms[name][0]) for name, box in boxes.items()}
    slices = Repeated((name, boxes[name], into[name]) for name in forms)
    for turn in range(3):
        # What the turn before lay in is still held: another region, elsewhere.
        name, rng = f"plain/{turn}", np.random.default_rng(turn)
        sent = {one: rng.integers(0, 1 << 30, shape).astype(dtype) for one, (dtype, shape) in forms.items()}
        await put_tensors(plane.store, name, sent)
        receipt = await plane.reader.read([VersionRead((name,), slices)], READ_S)
        for one, box in boxes.items():
            np.testing.assert_array_equal(into[one], sent[one][box.slices()])
        assert receipt.size_bytes_by_path == {PATHS[plane.kind]: sum(one.nbytes for one in into.values())}
        assert receipt.verified
    stale = await plane.registry.get(["plain/2"])
    await plane.store.remove([f"plain/{turn}" for turn in range(3)])
    await publish_descriptors(plane.registry, stale)
    with pytest.raises(RegionGone):
        await plane.reader.read([VersionRead(("plain/2",), slices)], READ_S)
    await plane.registry.remove(["plain/2"])
