"""Classes of tensors: names find them, descriptors carry them, and reads of any of them are right."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.dispatch.describe.descriptor import Descriptor
from earl.dispatch.describe.regions import ArenaRef, RegionRef
from earl.dispatch.describe.tensor_classes import ClassIndex, ClassShard, TensorClass, classes_of
from earl.dispatch.layout.box import Box
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import Placement
from earl.dispatch.read.resolve import Read, ReadPlan
from earl.dispatch.read.resolve_classes import _stacks, resolve
from earl.dispatch.registry import codec
from earl.errors import LayoutError, LayoutGap
from tests.support.classes import Owners


def flat(shape: tuple[int, ...], *placements: Placement, mesh: tuple[int, ...] = (2,)) -> MeshLayout:
    return MeshLayout(shape, mesh, placements, tuple(map(str, range(prod(mesh)))))


ROWS = flat((4, 6), ("shard", 0))


def test_names_that_differ_in_numbers_are_one_class():
    experts = {f"l.{i}.e.{j}.up": ("float32", ROWS) for i in range(3) for j in range(2)}
    odd = {"conv1.w": ("float32", ROWS), "l.0.e.0.down": ("float32", ROWS), "l.1.e.0.down": ("float32", ROWS)}
    made = classes_of(experts | odd)
    assert [(one.template, one.layout.shape, one.layout.stack) for one in made] == [
        ("l.{}.e.{}.up", (3, 2, 4, 6), 2),
        ("conv1.w", (4, 6), 0),
        ("l.{}.e.0.down", (2, 4, 6), 1),
    ]
    assert made[0].layout.placements == (("shard", 2),)
    assert [name for one in made for name in one.names()] == list(experts | odd)
    index = ClassIndex(made)
    assert index.find("l.2.e.1.up") == (made[0], 5)
    assert index.find("l.1.e.0.down") == (made[2], 1)
    for name in ("l.3.e.0.up", "l.2.e.2.up", "l.02.e.1.up", "l.0.e.1.down", "conv2.w", "l.x.e.0.up"):
        assert index.find(name) is None


def test_what_is_no_whole_grid_stays_apart():
    gap = {f"l.{i}.w": ("float32", ROWS) for i in (0, 2)}
    assert [one.template for one in classes_of(gap)] == ["l.0.w", "l.2.w"]
    other = {
        "l.0.w": ("float32", ROWS),
        "l.1.w": ("bfloat16", ROWS),
        "l.2.w": ("float32", flat((4, 6), ("shard", 1))),
    }
    assert len(classes_of(other)) == 3
    with pytest.raises(LayoutError, match="braces"):
        classes_of({"l.{}.w": ("float32", ROWS)})


@st.composite
def published(draw) -> tuple[TensorClass, np.ndarray]:
    stack = draw(st.integers(0, 2))
    sizes = tuple(draw(st.integers(1, 4)) for _ in range(stack))
    shape = (*sizes, *(draw(st.integers(1, 7)) for _ in range(draw(st.integers(1, 3)))))
    mesh = tuple(draw(st.integers(1, 3)) for _ in range(draw(st.integers(1, 2))))
    dims = st.integers(0, len(shape) - 1)
    placements = tuple(
        draw(
            st.one_of(
                st.just(("replicate",)),
                st.tuples(st.just("shard"), dims),
                st.tuples(st.just("zigzag"), dims),
                st.tuples(st.just("strided_shard"), dims, st.integers(1, 3)),
            )
        )
        for _ in mesh
    )
    template = "".join(f"l{i}.{{}}." for i in range(stack)) + "w"
    layout = MeshLayout(shape, mesh, placements, tuple(map(str, range(prod(mesh)))), stack)
    whole = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    return TensorClass(template, "int32", layout), whole


@settings(max_examples=150)
@given(published(), st.data())
def test_reads_of_a_class_are_right_whatever_its_layout(case, data):
    one, whole = case
    owners = Owners(one, whole)
    flat_ = whole.reshape(-1, *one.shape)
    some = data.draw(
        st.one_of(st.just(range(len(flat_))), st.sets(st.integers(0, len(flat_) - 1), min_size=1))
    )
    start = tuple(data.draw(st.integers(0, n)) for n in one.shape)
    stop = tuple(data.draw(st.integers(a, n)) for a, n in zip(start, one.shape, strict=True))
    box = Box(start, stop)
    names = list(one.names())
    into = {number: np.full(box.shape, -1, np.int32) for number in some}
    keys = tuple(owners.descriptors)
    copies = owners.read([Read(keys, names[number], box, array) for number, array in into.items()])
    for number, array in into.items():
        np.testing.assert_array_equal(array, flat_[number][box.slices()])
    moved = sum(source.size_bytes for source in copies.by_arena())
    assert moved == sum(array.nbytes for array in into.values())


def test_replicas_share_the_tensors_of_a_class():
    one = TensorClass(
        "l.{}.w", "int32", MeshLayout((64, 8, 8), (4,), (("replicate",),), ("0", "1", "2", "3"), 1)
    )
    whole = np.arange(64 * 64, dtype=np.int32).reshape(64, 8, 8)
    owners = Owners(one, whole)
    into = np.zeros_like(whole)
    reads = [Read(tuple(owners.descriptors), name, None, into[i]) for i, name in enumerate(one.names())]
    copies = owners.read(reads)
    np.testing.assert_array_equal(into, whole)
    assert [source.size_bytes for source in copies.by_arena()] == [64 * 64] * 4


def test_a_rank_whose_descriptor_is_missing_leaves_a_gap_with_its_box():
    (one,) = classes_of({f"l.{i}.w": ("int32", ROWS) for i in range(2)})
    owners = Owners(one, np.zeros((2, 4, 6), np.int32))
    upper, lower = (np.zeros((2, 6), np.int32) for _ in range(2))
    owners.read([Read(("weights/1/0",), "l.1.w", Box((0, 0), (2, 6)), upper)])
    with pytest.raises(LayoutGap, match=r"l\.\{\}\.w: no shard holds \[2:4, 0:6\]"):
        owners.read([Read(("weights/1/0",), "l.1.w", Box((2, 0), (4, 6)), lower)])
    with pytest.raises(LayoutGap, match=r"no tensor 'l\.2\.w'"):
        owners.read([Read(("weights/1/0", "weights/1/1"), "l.2.w", None, lower)])


def test_a_descriptor_that_leaves_its_region_is_refused():
    (one,) = classes_of({f"l.{i}.w": ("int32", ROWS) for i in range(2)})
    region = RegionRef(ArenaRef("o", 1, "", 1, 1 << 10, "", "cpu", "h"), 0, 1, 0, 100)
    data = codec.encode(Descriptor("k", 1, (), (ClassShard(one, 1, region, 0, 64),)))
    with pytest.raises(LayoutError, match="ends at byte 112 of a region of 100"):
        codec.decode(data)
    with pytest.raises(LayoutError, match="rank 2 of 2"):
        codec.decode(codec.encode(Descriptor("k", 1, (), (ClassShard(one, 2, region, 0, 16),))))


def test_what_comes_of_one_arena_is_spelled_out_within_credit():
    one = TensorClass("l.{}.w", "int32", MeshLayout((9, 8, 6), (1,), (("replicate",),), ("0",), 1))
    owners = Owners(one, np.zeros((9, 8, 6), np.int32))
    copies = ReadPlan()
    for name in one.names():
        resolve([Read(("weights/1/0",), name, None, np.zeros((8, 6), np.int32))], owners.descriptors, copies)
    (source,) = copies.by_arena()
    each = 8 * 6 * 4
    assert [pieces.size_bytes for pieces in source.pieces(2 * each + 1)] == [2 * each] * 4 + [each]
    assert [pieces.size_bytes for pieces in source.pieces(1)] == [each] * 9
    assert source.size_bytes == 9 * each


def test_one_tensor_may_be_wanted_twice():
    (one,) = classes_of({f"l.{i}.w": ("int32", ROWS) for i in range(3)})
    whole = np.arange(72, dtype=np.int32).reshape(3, 4, 6)
    owners = Owners(one, whole)
    keys = tuple(owners.descriptors)
    into = np.zeros((2, 4, 6), np.int32)
    owners.read([Read(keys, "l.1.w", None, into[0]), Read(keys, "l.1.w", None, into[1])])
    np.testing.assert_array_equal(into, whole[[1, 1]])


@given(st.lists(st.integers(1, 5), max_size=3), st.data())
def test_any_tensors_of_a_stack_are_products_of_ranges(sizes, data):
    total = prod(sizes)
    numbers = sorted(data.draw(st.sets(st.integers(0, total - 1), min_size=1)))
    found = []
    for stack in _stacks(tuple(sizes), np.array(numbers)):
        grid = np.meshgrid(
            *(np.concatenate([np.arange(*run) for run in runs]) for runs in stack), indexing="ij"
        )
        found += np.ravel_multi_index([g.ravel() for g in grid], sizes).tolist() if sizes else [0]
    assert sorted(found) == numbers


def test_owners_that_publish_as_one_rank_share_and_versions_do_not_mix():
    one = TensorClass("w", "int32", flat((64, 8), ("replicate",), mesh=(1,)))
    other = TensorClass("v", "int32", flat((64, 8), ("replicate",), mesh=(1,)))
    whole = np.arange(512, dtype=np.int32).reshape(64, 8)
    first, second = Owners(one, whole, 1), Owners(one, whole, 2, "p")
    known = {**first.descriptors, "weights/1/1": replace(second.descriptors["weights/2/0"], version=1)}
    known = {
        key: replace(one_, classes=(*one_.classes, replace(one_.classes[0], tensors=other)))
        for key, one_ in known.items()
    }
    copies, keys = ReadPlan(), tuple(known)
    into = np.zeros((2, 64, 8), np.int32)
    resolve([Read(keys, "w", None, into[0]), Read(keys, "v", None, into[1])], known, copies)
    assert [source.size_bytes for source in copies.by_arena()] == [into[0].nbytes] * 2
    mixed = {**first.descriptors, **second.descriptors}
    with pytest.raises(LayoutError, match=r"versions \[1, 2\]"):
        resolve([Read(tuple(mixed), "w", None, into[0])], mixed, ReadPlan())
