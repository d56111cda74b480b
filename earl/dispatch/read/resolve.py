"""From reads and descriptors to pieces of each arena. Pure but for the id of this host.

    boxes      Read(keys, name, box)      ─ plan per tensor ──┐
    sequences  SequenceRead(keys, columns) ─ plan_batch ──────┴─► copies ─ coalesce ─► Pieces, by arena

Reads of many ranges of one column are planned together as arrays. Sequences: see resolve_sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from earl.dispatch.describe.descriptor import Descriptor, ShardRef
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.describe.pieces import Pieces, coalesce, flat_bytes, join_pieces
from earl.dispatch.describe.regions import ArenaRef, RegionRef, Regions, host_id
from earl.dispatch.layout.box import Box, Layout, ShardBox
from earl.dispatch.layout.placements import DimensionSplit
from earl.dispatch.plan.boxes import plan
from earl.errors import LayoutError, LayoutGap


@dataclass(frozen=True, slots=True)
class Read:
    """One tensor, or `box` (global indices) of it, into an array of the box's shape.

    keys: every descriptor that together holds it. into: dtype as published, uint16 for bfloat16.
    """

    keys: tuple[str, ...]
    name: str
    box: Box | None
    into: np.ndarray


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor's dtype, by name, and global shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor with the shards that several descriptors list. shards: those of the layout, in its order."""

    layout: Layout
    shards: tuple[ShardRef, ...]


@dataclass(slots=True)
class FromArena:
    """The reads from one arena, in order: pieces, each made when its turn comes."""

    arena: ArenaRef
    size_bytes: int = 0
    # Number of boxes to copy; each makes at least one piece.
    copies: int = 0
    _parts: list[tuple[int, Callable[[], Pieces]]] = field(default_factory=list)

    def add(self, pieces: Pieces) -> None:
        """Appends pieces that are known already."""
        self.defer(pieces.size_bytes, len(pieces), lambda: pieces)

    def defer(self, size_bytes: int, copies: int, make: Callable[[], Pieces]) -> None:
        """Appends pieces of size_bytes, for `copies` boxes, that `make` makes once it is their turn."""
        self._parts.append((size_bytes, make))
        self.size_bytes += size_bytes
        self.copies += copies

    def pieces(self, credit_bytes: int) -> Iterator[Pieces]:
        """All pieces in order, joined to about credit_bytes at a time, at most that and one part more."""
        together: list[Pieces] = []
        waiting = 0
        for size_bytes, make in self._parts:
            if together and waiting + size_bytes > credit_bytes:
                yield join_pieces(together)
                together, waiting = [], 0
            together.append(make())
            waiting += size_bytes
        if together:
            yield join_pieces(together)


class ReadPlan:
    """The planned reads so far, by arena. loads: bytes from each owner, by which replicas share the load."""

    def __init__(self) -> None:
        self._arenas: dict[int, FromArena] = {}
        self.loads: dict[str, int] = {}

    def add(self, arena: ArenaRef, pieces: Pieces) -> None:
        """Appends pieces of one arena that are known already; empty ones are left out."""
        if len(pieces):
            self.defer(arena, pieces.size_bytes, len(pieces), lambda: pieces)

    def defer(self, arena: ArenaRef, size_bytes: int, copies: int, make: Callable[[], Pieces]) -> None:
        """Appends pieces of one arena: size_bytes, for `copies` boxes, that `make` makes in their turn."""
        self._arenas.setdefault(arena.nonce, FromArena(arena)).defer(size_bytes, copies, make)
        self.loads[arena.owner] = self.loads.get(arena.owner, 0) + size_bytes

    def by_arena(self) -> list[FromArena]:
        """Returns the reads from each arena, in the order in which the arenas were first named."""
        return list(self._arenas.values())


def assemble(descriptors: Sequence[Descriptor]) -> dict[str, Tensor]:
    """Tensors by name, with the shards of all descriptors. Raises LayoutError when they disagree."""
    shards: dict[str, list[ShardRef]] = {}
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for descriptor in descriptors:
        for tensor in descriptor.tensors:
            form = (tensor.dtype, tensor.shape)
            if shapes.setdefault(tensor.name, form) != form:
                raise LayoutError(
                    f"{tensor.name} is {form} under {descriptor.key} and {shapes[tensor.name]} elsewhere",
                    "read keys of one version only",
                )
            shards.setdefault(tensor.name, []).extend(tensor.shards)
    return {
        name: Tensor(
            Layout(name, dtype, shape, tuple(ShardBox(s.region.arena.owner, s.box) for s in shards[name])),
            tuple(shards[name]),
        )
        for name, (dtype, shape) in shapes.items()
    }


def resolve_boxes(reads: Sequence[Read], known: Mapping[str, Descriptor], copies: ReadPlan) -> None:
    """Appends the pieces of reads of tensors that are published by boxes.

    Raises LayoutGap, LayoutError, LayoutOverlap where owners' boxes overlap and are no replicas.
    """
    assembled: dict[tuple[str, ...], dict[str, Tensor]] = {}
    groups: dict[tuple[tuple[str, ...], str], list[Read]] = {}
    for read in reads:
        groups.setdefault((read.keys, read.name), []).append(read)
    # Tensors of as many dimensions become pieces together.
    tables: dict[int, _Table] = {}
    for (keys, name), group in groups.items():
        if keys not in assembled:
            assembled[keys] = assemble([known[key] for key in keys])
        tensor = assembled[keys].get(name)
        if tensor is None:
            raise LayoutGap(
                f"no tensor {name!r} under {', '.join(keys)}",
                f"published there: {', '.join(sorted(assembled[keys])[:8])}",
            )
        boxes = [checked(read, tensor.layout.dtype, tensor.layout.shape) for read in group]
        if len(group) > 1 and len(tensor.layout.shape) == 1 and _add_ranges(group, boxes, tensor, copies):
            continue
        tensor.layout.refuse_partial_overlap()
        cost = {s.region.arena.owner: float(s.region.arena.host != host_id()) for s in tensor.shards}
        table = tables.setdefault(len(tensor.layout.shape), _Table())
        for read, box in zip(group, boxes, strict=True):
            into = flat_bytes(read.into)
            for copy in plan(tensor.layout, box, cost, copies.loads):
                shard = tensor.shards[copy.shard_index]
                owner = shard.region.arena.owner
                size_bytes = copy.source.size * read.into.itemsize
                copies.loads[owner] = copies.loads.get(owner, 0) + size_bytes
                table.add(shard, copy.source, copy.target, read.into, into)
    for table in tables.values():
        for arena, pieces in table.pieces():
            copies.loads[arena.owner] -= pieces.size_bytes  # counted while it was planned
            copies.add(arena, pieces)


def checked(read: Read, dtype: str, shape: tuple[int, ...]) -> Box:
    """The box of a read. Raises LayoutError unless its target has the box's shape and dtype."""
    box = read.box if read.box is not None else Box.whole(shape)
    expected = numpy_dtype(dtype)
    if len(box.start) != len(shape) or not Box.whole(shape).contains(box):
        raise LayoutError(f"{read.name}: box {box} lies outside shape {shape}", "give global indices")
    if read.into.dtype != expected or read.into.shape != box.shape or not read.into.flags.writeable:
        raise LayoutError(
            f"{read.name}: target {read.into.dtype} {read.into.shape}, box {dtype} {box.shape}",
            f"give a writable array of {expected} {box.shape}",
        )
    return box


@dataclass(slots=True)
class _Table:
    """Copies of tensors with R dimensions, a row for each, until they become pieces."""

    shards: list[ShardRef] = field(default_factory=list)
    buffer_of: list[int] = field(default_factory=list)
    buffers: list[np.ndarray] = field(default_factory=list)
    # Offset in the region, offset in the buffer, bytes of an element.
    scalars: list[tuple[int, int, int]] = field(default_factory=list)
    # Extents, the source's strides, the target's: R each.
    vectors: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, shard: ShardRef, source: Box, target: Box, into: np.ndarray, flat: np.ndarray) -> None:
        offset = shard.offset_bytes + _dot(source.start, shard.strides_bytes)
        self.shards.append(shard)
        if not self.buffers or self.buffers[-1] is not flat:
            self.buffers.append(flat)
        self.buffer_of.append(len(self.buffers) - 1)
        self.scalars.append((offset, _dot(target.start, into.strides), into.itemsize))
        self.vectors.append((*target.shape, *shard.strides_bytes, *into.strides))

    def pieces(self) -> Iterable[tuple[ArenaRef, Pieces]]:
        if not self.shards:
            return
        offset, target_offset, item_bytes = np.array(self.scalars, np.int64).T
        dimensions = len(self.vectors[0]) // 3
        vectors = np.array(self.vectors, np.int64).reshape(len(self.shards), 3, dimensions)
        strips = coalesce(offset, target_offset, vectors[:, 0], vectors[:, 1], vectors[:, 2], item_bytes)
        refs: dict[int, int] = {}
        regions: list[RegionRef] = []
        for shard in self.shards:
            if id(shard.region) not in refs:
                refs[id(shard.region)] = len(regions)
                regions.append(shard.region)
        region = np.array([refs[id(shard.region)] for shard in self.shards], np.int64)[strips.copy]
        buffer = np.array(self.buffer_of, np.int32)[strips.copy]
        nonces = np.array([ref.arena.nonce for ref in regions], np.uint64)
        for nonce in np.unique(nonces):
            held = np.flatnonzero(nonces == nonce)
            local = np.full(len(regions), -1, np.int32)
            local[held] = np.arange(len(held))
            index = np.flatnonzero(local[region] >= 0)
            yield (
                regions[held[0]].arena,
                Pieces(
                    Regions.of([regions[i] for i in held]),
                    local[region[index]],
                    strips.offset[index],
                    strips.rows[index],
                    strips.run[index],
                    strips.stride[index],
                    tuple(self.buffers),
                    buffer[index],
                    strips.target_offset[index],
                    strips.target_stride[index],
                ),
            )


def _dot(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * stride for i, stride in zip(index, strides, strict=True))


def _add_ranges(group: Sequence[Read], boxes: Sequence[Box], tensor: Tensor, copies: ReadPlan) -> bool:
    """Appends many ranges of one column at once; False if shards overlap, leave a gap or are strided.

    `plan` then takes the ranges one by one, and names the gap.
    """
    not_empty = [(read, box) for read, box in zip(group, boxes, strict=True) if box.size]
    if not not_empty:
        return True
    group, boxes = [read for read, _ in not_empty], [box for _, box in not_empty]
    item_bytes = group[0].into.itemsize
    start = np.array([shard.box.start[0] for shard in tensor.shards], np.int64)
    stop = np.array([shard.box.stop[0] for shard in tensor.shards], np.int64)
    plain = all(shard.strides_bytes == (item_bytes,) for shard in tensor.shards)
    plain &= all(read.into.flags.c_contiguous for read in group)
    order = np.argsort(start, kind="stable")
    order = order[stop[order] > start[order]]
    if not plain or (start[order][1:] < stop[order][:-1]).any():
        return False
    ranges = tuple((box.start[0], box.stop[0]) for box in boxes)
    split = DimensionSplit(
        len(start), start[order], stop[order], order.astype(np.int32), np.zeros(len(order), np.int64)
    )
    overlap = split.overlap(ranges)
    bounds = np.cumsum([0, *(last - first for first, last in ranges)])
    if int(overlap.extent.sum()) != bounds[-1]:
        return False
    read = np.searchsorted(bounds, overlap.target, "right") - 1
    buffers = tuple(flat_bytes(each.into) for each in group)
    offsets = np.array([shard.offset_bytes for shard in tensor.shards], np.int64)
    zeros = np.zeros(len(overlap.extent), np.int64)
    for number, shard in enumerate(tensor.shards):
        index = np.flatnonzero(overlap.part == number)
        if len(index):
            pieces = Pieces(
                Regions.of([shard.region]),
                np.zeros(len(index), np.int32),
                offsets[number] + overlap.source[index] * item_bytes,
                zeros[index] + 1,
                overlap.extent[index] * item_bytes,
                zeros[index],
                buffers,
                read[index].astype(np.int32),
                (overlap.target[index] - bounds[read[index]]) * item_bytes,
                zeros[index],
            )
            copies.add(shard.region.arena, pieces)
    return True
