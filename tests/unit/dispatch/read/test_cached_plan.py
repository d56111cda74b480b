"""Plans that are kept: the next version is read by the last one's plan, anything else is planned anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from earl.dispatch.describe.descriptor import Descriptor, ShardRef, TensorShards
from earl.dispatch.describe.regions import ArenaRef, RegionRef, host_id
from earl.dispatch.describe.tensor_classes import TensorClass
from earl.dispatch.layout.box import Box
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.read import cached_plan
from earl.dispatch.read.cached_plan import Repeated
from earl.dispatch.read.resolve import FromArena
from earl.dispatch.transport.copying import Views, copy
from earl.errors import LayoutError
from tests.support.classes import Owners


def klass(*mesh: int) -> TensorClass:
    owners = tuple(map(str, range(int(np.prod(mesh)))))
    split = (("shard", 1), ("shard", 2))[: len(mesh)]
    return TensorClass("l.{}.w", "int32", MeshLayout((5, 8, 6), mesh, split, owners, 1))


def values(version: int) -> np.ndarray:
    return np.arange(5 * 8 * 6, dtype=np.int32).reshape(5, 8, 6) + 1000 * version


def slices(into: np.ndarray, box: Box | None) -> Repeated:
    return Repeated((f"l.{i}.w", box, into[i]) for i in range(5))


def plan(kept: Repeated, owners: Owners, turn: int = 0) -> list[FromArena]:
    return kept.plan(tuple(owners.descriptors), owners.descriptors, turn)


@pytest.fixture
def planned(monkeypatch) -> list[int]:
    """A list of how many reads were planned, each time that any were."""
    calls: list[int] = []
    real = cached_plan.resolve

    def counted(reads, *rest):
        calls.append(len(reads))
        real(reads, *rest)

    monkeypatch.setattr(cached_plan, "resolve", counted)
    return calls


BOX = Box((2, 1), (7, 6))


def test_the_next_version_is_read_by_the_same_plan(planned):
    into = np.zeros((5, 5, 5), np.int32)
    kept = slices(into, BOX)
    for version in range(1, 5):
        owners = Owners(klass(2, 2), values(version), version)
        sources = plan(kept, owners, turn=version)
        owners.carry_out(sources)
        np.testing.assert_array_equal(into, values(version)[:, 2:7, 1:6])
        assert sum(source.size_bytes for source in sources) == into.nbytes
    assert planned == [5]


def test_another_layout_is_planned_anew(planned):
    into = np.zeros((5, 5, 5), np.int32)
    kept = slices(into, BOX)
    for version, mesh in enumerate(((2, 2), (4,), (2, 2))):
        owners = Owners(klass(*mesh), values(version), version)
        owners.carry_out(plan(kept, owners))
        np.testing.assert_array_equal(into, values(version)[:, 2:7, 1:6])
    assert planned == [5] * 3


def published(arena: int, place: int, first_row: int, rows: int) -> Descriptor:
    """Rows of a plain tensor of 8 x 6 in a region of their own, `place` bytes into it."""
    ref = ArenaRef(f"o{arena}", 1, "", arena, 1 << 12, "", "cpu", host_id())
    box = Box((first_row, 0), (first_row + rows, 6))
    shard = ShardRef(box, RegionRef(ref, 0, 1, 64, 1 << 11), place, (24, 4))
    return Descriptor(f"samples/{arena}", 0, (TensorShards("x", "int32", (8, 6), (shard,)),))


def test_plain_tensors_are_planned_once_until_they_lie_elsewhere(planned):
    into = np.zeros((6, 3), np.int32)
    kept = Repeated([("x", Box((1, 2), (7, 5)), into)])
    for turn, (place, split) in enumerate(((0, 4), (0, 4), (128, 4), (128, 3), (128, 3))):
        whole, memory = values(turn)[0], dict[int, np.ndarray]()
        descriptors = [published(0, place, 0, split), published(1, place, split, 8 - split)]
        for number, rows in enumerate((whole[:split], whole[split:])):
            memory[number] = np.zeros(1 << 12, np.uint8)
            memory[number][64 + place : 64 + place + rows.nbytes] = rows.reshape(-1).view(np.uint8)
        for source in kept.plan(("a", "b"), dict(zip("ab", descriptors, strict=True)), turn):
            for pieces in source.pieces(1 << 20):
                copy(memory[source.arena.nonce], pieces)
        np.testing.assert_array_equal(into, whole[1:7, 2:5])
    assert planned == [1, 1, 1]


def test_keys_of_two_versions_are_refused_by_a_kept_plan_too():
    kept, owners = slices(np.zeros((5, 5, 5), np.int32), BOX), Owners(klass(2), values(1))
    plan(kept, owners)
    _, second = owners.descriptors
    owners.descriptors[second] = replace(owners.descriptors[second], version=9)
    with pytest.raises(LayoutError, match="one version"):
        plan(kept, owners)


def test_a_plan_too_large_to_keep_is_made_each_time(planned, monkeypatch):
    monkeypatch.setattr(cached_plan, "_MOST_PIECES", 3)
    into = np.zeros((5, 5, 5), np.int32)
    kept, owners = slices(into, BOX), Owners(klass(4), values(1))
    for _ in range(2):
        into[:] = 0
        owners.carry_out(plan(kept, owners))
        np.testing.assert_array_equal(into, values(1)[:, 2:7, 1:6])
    assert planned == [5, 5]


def test_two_regions_of_one_arena_are_not_taken_for_one():
    whole = values(1)
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
    kept = slices(into, None)
    for _ in range(2):
        into[:] = 0
        for source in kept.plan(tuple(known), known, turn=0):
            for pieces in source.pieces(1 << 20):
                copy(memory, pieces)
        np.testing.assert_array_equal(into, whole)


def test_a_kept_plan_does_not_write_what_became_read_only():
    into = np.zeros((5, 5, 5), np.int32)
    arrays = list(into)
    kept = Repeated((f"l.{i}.w", BOX, one) for i, one in enumerate(arrays))
    owners = Owners(klass(2), values(1))
    plan(kept, owners)
    arrays[3].flags.writeable = False
    with pytest.raises(LayoutError, match="writable"):
        plan(kept, owners)


class Owner:
    """Whose life its memory's views share."""


def test_views_are_of_the_last_two_places_and_end_with_the_memory():
    owners, into = Owners(klass(1), values(1)), np.zeros((5, 5, 5), np.int32)
    (source,) = plan(slices(into, BOX), owners)
    (pieces,) = source.pieces(1 << 30)
    (part,) = owners.memory.values()
    views = Views(pieces)
    assert pieces.repeat is not None and pieces.take(slice(0, 2)).repeat is None
    memory = np.zeros((3, len(part)), np.uint8)
    owner: Owner | None = Owner()

    def pairs(place: int) -> list[tuple[np.ndarray, np.ndarray]]:
        at = pieces.regions.offset_bytes + place * len(part)
        moved = replace(pieces, regions=replace(pieces.regions, offset_bytes=at))
        return views.pairs(owner, memory.reshape(-1), moved, limit_bytes=20)

    made = [pairs(place) for place in range(3)]
    for place in range(3):
        memory[:], into[:] = 0, 0
        memory[place] = part
        for target, from_place in made[place]:
            assert target.nbytes <= 20
            np.copyto(target, from_place)
        np.testing.assert_array_equal(into, values(1)[:, 2:7, 1:6])
    assert pairs(1) is made[1] and pairs(2) is made[2] and pairs(0) is not made[0]
    assert len(views) == 2
    owner = None
    assert len(views) == 0
