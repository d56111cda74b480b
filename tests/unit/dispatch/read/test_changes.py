"""Changes for readers in any layout: the blocks that they need, what they write, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from earl.dispatch.changes.coding import BLOCK_ELEMENTS, COLUMNS, DIGEST, blocks_of, code_changes
from earl.dispatch.changes.record import PublishedRegion, base_of, header_of, parts_of
from earl.dispatch.describe.descriptor import Descriptor, ShardRef, TensorShards
from earl.dispatch.describe.regions import ArenaRef, RegionRef
from earl.dispatch.describe.tensor_classes import ClassShard, classes_of, spaced
from earl.dispatch.layout.box import Box
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.read.changes import VersionChanges, _blocks, _reads, _SliceIndex
from earl.errors import ChangesUnusable

REGION = RegionRef(ArenaRef("t0", 1, "/dev/shm/none", (1 << 64) - 5, 1 << 20, "", "cpu", "here"), 3, 7, 0, 64)
SHAPES = {"matrix": (700, 300), "cube": (6, 40, 900), "vector": (70_000,), "scalar": ()}


def versions(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(old, new) tensors, of which a fiftieth differs."""
    rng = np.random.default_rng(seed)
    old = {name: rng.integers(0, 1 << 16, shape).astype(np.uint16) for name, shape in SHAPES.items()}
    new = {name: np.where(rng.random(v.shape) < 0.02, v + 1, v).astype(np.uint16) for name, v in old.items()}
    return old, new


def random_box(rng: np.random.Generator, shape: tuple[int, ...]) -> Box:
    bounds = [sorted(rng.choice(n + 1, 2, replace=False).tolist()) for n in shape]
    return Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds))


def descriptor(boxes: dict[str, Box]) -> Descriptor:
    tensors = tuple(
        TensorShards(name, "bfloat16", SHAPES[name], (ShardRef(box, REGION, 0, ()),))
        for name, box in boxes.items()
    )
    return Descriptor("weights/2/t0", 2, tensors)


def coded(
    boxes: dict[str, Box], old: dict[str, np.ndarray], new: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(table, body) of an owner that holds these boxes."""
    pairs = [
        tuple(np.ascontiguousarray(each[name][box.slices()]) for each in (old, new))
        for name, box in boxes.items()
    ]
    table = np.zeros((sum(blocks_of(box.size) for box in boxes.values()), COLUMNS), np.int64)
    body = np.zeros(1 << 20, np.uint8)
    assert code_changes(pairs, table, body) is not None  # pyright: ignore[reportArgumentType]
    return table, body


def planned(
    index: _SliceIndex, boxes: dict[str, Box], table: np.ndarray, body: np.ndarray
) -> tuple[VersionChanges, int]:
    """The changes that a reader takes of one owner, and how many bytes of its body it reads."""
    needed = list(index.parts(descriptor(boxes), "c", table, len(body)))
    into, reads = _reads("c", needed)
    for read in reads:
        assert read.box is not None
        read.into[:] = body[read.box.slices()]
    return VersionChanges(frozenset(), 0, list(_blocks(needed, into))), len(into)


def box_within(rng: np.random.Generator, box: Box) -> Box:
    inner = random_box(rng, box.shape)
    starts = tuple(a + o for a, o in zip(inner.start, box.start, strict=True))
    return Box(starts, tuple(a + n for a, n in zip(starts, inner.shape, strict=True)))


def array_of(shape: tuple[int, ...], wide: bool) -> tuple[np.ndarray, np.ndarray]:
    """(memory, an array of this shape in it); wide: as of a stacked parameter, whose rows are longer."""
    if not wide or not shape:
        array = np.zeros(shape, np.uint16)
        return array, array
    memory = np.zeros((*shape[:-1], shape[-1] + 3), np.uint16)
    return memory, memory[..., : shape[-1]]


@pytest.mark.parametrize("seed", range(12))
def test_a_reader_gets_its_slices_whatever_the_owner_holds(seed: int):
    """Slices of any box within the owner's, strided arrays among them; nothing else is written."""
    rng = np.random.default_rng(seed)
    old, new = versions(seed)
    boxes = {name: random_box(rng, shape) for name, shape in SHAPES.items()}
    table, body = coded(boxes, old, new)
    arrays: list[tuple[str, Box, np.ndarray, np.ndarray]] = []
    for name, box in boxes.items():
        held = box if seed % 3 == 0 else box_within(rng, box)
        memory, into = array_of(held.shape, wide=seed % 2 == 1)
        into[...] = old[name][held.slices()]
        arrays.append((name, held, memory, into))
    index = _SliceIndex((name, held, into) for name, held, _, into in arrays)
    changes, read_bytes = planned(index, boxes, table, body)
    index.refuse_gaps()
    changes.check()
    for name, held, _, into in arrays:
        np.testing.assert_array_equal(into, old[name][held.slices()])
    changes.apply()
    for name, held, memory, into in arrays:
        np.testing.assert_array_equal(into, new[name][held.slices()])
        assert not held.shape or not memory[..., held.shape[-1] :].any()
    assert read_bytes <= len(body)


def test_only_blocks_that_meet_the_slices_are_read():
    old, new = versions(1)
    boxes = {"matrix": Box.whole(SHAPES["matrix"])}
    table, body = coded(boxes, old, new)
    sizes = []
    for rows in ((0, 700), (0, 200), (300, 301), (690, 700)):
        into = old["matrix"][slice(*rows)].copy()
        index = _SliceIndex([("matrix", Box((rows[0], 0), (rows[1], 300)), into)])
        changes, read_bytes = planned(index, boxes, table, body)
        changes.check()
        changes.apply()
        np.testing.assert_array_equal(into, new["matrix"][slice(*rows)])
        sizes.append(read_bytes)
    # Four blocks of 219 rows; the last one has 43.
    assert (
        sizes[0] > 3 * sizes[1] and sizes[1] == pytest.approx(sizes[2], rel=0.2) and sizes[3] < sizes[1] / 2
    )


def test_a_copy_that_is_not_the_base_is_refused_and_kept():
    """One bit of an element that did not change."""
    old, new = versions(2)
    boxes = {"matrix": Box.whole(SHAPES["matrix"])}
    table, body = coded(boxes, old, new)
    into = old["matrix"].copy()
    same = np.argwhere(old["matrix"] == new["matrix"])[12_345]
    into[tuple(same)] ^= 1
    before = into.copy()
    changes, _ = planned(_SliceIndex([("matrix", None, into)]), boxes, table, body)
    with pytest.raises(ChangesUnusable, match="digest"):
        changes.check()
    np.testing.assert_array_equal(into, before)


def test_a_strided_copy_is_checked_by_digests_too():
    """The columns that one owner holds, in an array that has all columns."""
    old, new = versions(3)
    box = Box((0, 100), (700, 300))
    table, body = coded({"matrix": box}, old, new)
    table.view(np.uint64)[1, DIGEST] ^= np.uint64(1)
    into = old["matrix"].copy()
    changes, _ = planned(_SliceIndex([("matrix", None, into)]), {"matrix": box}, table, body)
    with pytest.raises(ChangesUnusable, match="digest"):
        changes.check()


def test_replicas_are_read_once_and_gaps_are_refused():
    old, new = versions(4)
    upper = {"matrix": Box((0, 0), (350, 300))}
    table, body = coded(upper, old, new)
    index = _SliceIndex([("matrix", None, old["matrix"].copy())])
    _, first = planned(index, upper, table, body)
    _, second = planned(index, upper, table, body)
    assert first > 0 == second
    with pytest.raises(ChangesUnusable, match="105000 elements"):
        index.refuse_gaps()


def test_tables_and_bodies_of_other_sizes_are_refused():
    old, new = versions(5)
    boxes = {"matrix": Box.whole(SHAPES["matrix"])}
    table, body = coded(boxes, old, new)
    index = _SliceIndex([("matrix", None, old["matrix"])])
    with pytest.raises(ChangesUnusable, match="has 3 blocks, and not 4"):
        list(index.parts(descriptor(boxes), "c", table[:3], len(body)))
    with pytest.raises(ChangesUnusable, match="has 100 bytes of body"):
        list(index.parts(descriptor(boxes), "c", table, 100))
    with pytest.raises(ChangesUnusable, match="float32, published as bfloat16"):
        other = _SliceIndex([("matrix", None, np.zeros(SHAPES["matrix"], np.float32))])
        list(other.parts(descriptor(boxes), "c", table, len(body)))


def test_a_header_names_the_region_of_its_base():
    region = PublishedRegion.of(descriptor({"scalar": Box((), ())}))
    assert region == PublishedRegion(REGION.arena.nonce, 3, 7)
    assert base_of(header_of(6, region), "c") == (6, region)
    other = header_of(6, region)
    other[0] = 2
    with pytest.raises(ChangesUnusable, match="format 2"):
        base_of(other, "c")


def test_parts_are_in_the_order_of_the_owners_arrays():
    """A class has the box of each of its tensors on the owner's place of the mesh."""
    layout = MeshLayout((8, 6), (2, 2), (("shard", 1), ("shard", 0)), ("0", "1", "2", "3"))
    (stacked,) = classes_of({f"layers.{i}.w": ("bfloat16", layout) for i in range(2)})
    whole = Descriptor("k", 1, (), (ClassShard(stacked, 3, REGION, 0, spaced(24)),))
    parts = parts_of(whole)
    assert [part.name for part in parts] == list(stacked.held(3)[0])
    assert {part.box for part in parts} == {Box((4, 3), (8, 6))}
    assert parts[0].box.size < BLOCK_ELEMENTS
