"""Plans that are kept: the next version is read by the last one's plan, anything else is planned anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from earl.dispatch import repeated
from earl.dispatch.classes import TensorClass
from earl.dispatch.layout import Box
from earl.dispatch.mesh import MeshLayout
from earl.dispatch.repeated import Repeated
from earl.dispatch.resolve import Read
from earl.dispatch.transport.copying import copy
from earl.errors import LayoutError
from tests.support.classes import Owners


def klass(*mesh: int) -> TensorClass:
    owners = tuple(map(str, range(int(np.prod(mesh)))))
    cut = (("shard", 1), ("shard", 2))[: len(mesh)]
    return TensorClass("l.{}.w", "int32", MeshLayout((5, 8, 6), mesh, cut, owners, 1))


def values(version: int) -> np.ndarray:
    return np.arange(5 * 8 * 6, dtype=np.int32).reshape(5, 8, 6) + 1000 * version


def wanted(owners: Owners, into: np.ndarray, box: Box) -> list[Read]:
    return [Read(tuple(owners.descriptors), f"l.{i}.w", box, into[i]) for i in range(5)]


@pytest.fixture
def planned(monkeypatch) -> list[int]:
    """How many reads were planned, each time that any were."""
    calls: list[int] = []
    real = repeated.resolve

    def counted(reads, *rest):
        calls.append(len(reads))
        real(reads, *rest)

    monkeypatch.setattr(repeated, "resolve", counted)
    return calls


BOX = Box((2, 1), (7, 6))


def test_the_next_version_is_read_by_the_same_plan(planned):
    kept, into = Repeated(), np.zeros((5, 5, 5), np.int32)
    for version in range(1, 5):
        owners = Owners(klass(2, 2), values(version), version)
        sources = kept.plan(wanted(owners, into, BOX), owners.descriptors, turn=version)
        owners.carry_out(sources)
        np.testing.assert_array_equal(into, values(version)[:, 2:7, 1:6])
        assert sum(source.size_bytes for source in sources) == into.nbytes
    assert planned == [5]


def test_other_targets_boxes_and_layouts_are_planned_anew(planned):
    kept = Repeated()
    for mesh, box in (((2, 2), BOX), ((4,), BOX), ((4,), Box((0, 0), (5, 5))), ((4,), Box((0, 0), (5, 5)))):
        owners, into = Owners(klass(*mesh), values(1)), np.zeros((5, 5, 5), np.int32)
        owners.carry_out(kept.plan(wanted(owners, into, box), owners.descriptors, turn=0))
        np.testing.assert_array_equal(into, values(1)[:, *box.slices()])
    assert planned == [5] * 4


def test_a_plan_too_large_to_keep_is_made_each_time(planned, monkeypatch):
    monkeypatch.setattr(repeated, "_MOST_PIECES", 3)
    kept, into = Repeated(), np.zeros((5, 5, 5), np.int32)
    owners = Owners(klass(4), values(1))
    for _ in range(2):
        into[:] = 0
        owners.carry_out(kept.plan(wanted(owners, into, BOX), owners.descriptors, turn=0))
        np.testing.assert_array_equal(into, values(1)[:, 2:7, 1:6])
    assert planned == [5, 5]


def test_two_regions_of_one_arena_are_not_taken_for_one():
    kept, whole = Repeated(), values(1)
    owners = Owners(klass(2), whole)
    first, second = owners.descriptors.values()
    # The second rank's part lies in the same arena, behind the first one's.
    shift = len(owners.memory[100])
    memory = np.concatenate([owners.memory[100], owners.memory[101]])
    region = second.classes[0].region
    moved = replace(
        region, arena=first.classes[0].region.arena, slot=1, offset_bytes=region.offset_bytes + shift
    )
    known = {first.key: first, "b": replace(second, classes=(replace(second.classes[0], region=moved),))}
    into = np.zeros((5, 8, 6), np.int32)
    for _ in range(2):
        into[:] = 0
        reads = [Read(tuple(known), f"l.{i}.w", None, into[i]) for i in range(5)]
        for source in kept.plan(reads, known, turn=0):
            for pieces in source.pieces(1 << 20):
                copy(memory, pieces)
        np.testing.assert_array_equal(into, whole)


def test_a_kept_plan_does_not_write_what_became_read_only():
    kept, into = Repeated(), np.zeros((5, 5, 5), np.int32)
    owners = Owners(klass(2), values(1))
    kept.plan(wanted(owners, into, BOX), owners.descriptors, turn=0)
    into.flags.writeable = False
    with pytest.raises(LayoutError, match="writable"):
        kept.plan(wanted(owners, into, BOX), owners.descriptors, turn=0)
