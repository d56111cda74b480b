"""Reads of tensors that are published by classes: planned a class at a time, for all its tensors at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from earl.dispatch.describe.descriptor import Descriptor, row_major
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.describe.pieces import Pieces, coalesce, flat_bytes
from earl.dispatch.describe.regions import Regions, host_id
from earl.dispatch.describe.tensor_classes import ClassIndex, ClassShard, TensorClass, length
from earl.dispatch.layout.box import Box
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import Runs
from earl.dispatch.plan.class_plan import Want, plan_reads
from earl.dispatch.plan.schedule import ReadRequests, schedule
from earl.dispatch.read.resolve import Read, ReadPlan, checked, resolve_boxes
from earl.errors import LayoutError, LayoutGap

# What is in flight from one peer at most: a request, and whatever the transport splits it into.
CREDIT_BYTES = 64 << 20


class PublishedClasses:
    """The classes that several descriptors together hold."""

    def __init__(self, descriptors: Sequence[Descriptor]) -> None:
        self._shards: dict[TensorClass, dict[int, list[ClassShard]]] = {}
        for descriptor in descriptors:
            for shard in descriptor.classes:
                self._shards.setdefault(shard.tensors, {}).setdefault(shard.rank, []).append(shard)
        self._index = ClassIndex(self._shards)
        versions = {descriptor.version for descriptor in descriptors if descriptor.classes}
        if len(versions) > 1:
            names = ", ".join(descriptor.key for descriptor in descriptors)
            raise LayoutError(f"versions {sorted(versions)} under {names}", "read keys of one version only")

    def find(self, name: str) -> tuple[TensorClass, int] | None:
        """(class, number in it) of a tensor, or None."""
        return self._index.find(name)

    def classes(self) -> Iterable[TensorClass]:
        return self._shards.keys()

    def shards(self, tensor_class: TensorClass, loads: Mapping[str, int]) -> dict[int, ClassShard]:
        """The shard to read for each rank of the class's mesh that is published in these descriptors.

        Where several owners publish as one rank: the nearest, and of those the one with the fewest bytes in
        `loads`, by owner.
        """

        def distance(shard: ClassShard) -> tuple[bool, int]:
            arena = shard.region.arena
            return arena.host != host_id(), loads.get(arena.owner, 0)

        return {rank: min(shards, key=distance) for rank, shards in self._shards[tensor_class].items()}


def resolve(reads: Sequence[Read], known: Mapping[str, Descriptor], copies: ReadPlan, turn: int = 0) -> None:
    """Appends the pieces of reads of any tensors. turn: the peer to begin with, another for each reader.

    Raises LayoutGap, LayoutError.
    """
    published: dict[tuple[str, ...], PublishedClasses] = {}
    by_class: dict[tuple[str, ...], list[Read]] = {}
    boxes: list[Read] = []
    for read in reads:
        if read.keys not in published:
            published[read.keys] = PublishedClasses([known[key] for key in read.keys])
        if published[read.keys].find(read.name) is None:
            boxes.append(read)
        else:
            by_class.setdefault(read.keys, []).append(read)
    resolve_boxes(boxes, known, copies)
    for keys, some in by_class.items():
        resolve_classes(some, published[keys], copies, turn)


def resolve_classes(reads: Sequence[Read], known: PublishedClasses, copies: ReadPlan, turn: int) -> None:
    """Appends the pieces of reads of tensors in these classes. Raises LayoutGap, LayoutError."""
    # By class, box and strides, then by number: where a tensor goes. What is read twice is a second group.
    groups: dict[tuple[TensorClass, Box, tuple[int, ...], int], dict[int, np.ndarray]] = {}
    for read in reads:
        match = known.find(read.name)
        assert match is not None, read.name
        tensor_class, number = match
        box = checked(read, tensor_class.dtype, tensor_class.shape)
        again = 0
        while number in (group := groups.setdefault((tensor_class, box, read.into.strides, again), {})):
            again += 1
        group[number] = read.into
    for (tensor_class, box, *_), group in groups.items():
        _resolve(tensor_class, box, group, known.shards(tensor_class, copies.loads), copies, turn)


def _resolve(
    tensor_class: TensorClass,
    box: Box,
    group: dict[int, np.ndarray],
    shards: dict[int, ClassShard],
    copies: ReadPlan,
    turn: int,
) -> None:
    layout = tensor_class.layout
    if not box.size:
        return
    inner = tuple(((a, b),) for a, b in zip(box.start, box.stop, strict=True))
    item_bytes = numpy_dtype(tensor_class.dtype).itemsize
    owners = len(layout.owners)
    cost, loads = np.full(owners, np.inf), np.zeros(owners, np.int64)
    for rank, shard in shards.items():
        arena = shard.region.arena
        cost[rank] = float(arena.host != host_id())
        loads[rank] = copies.loads.get(arena.owner, 0)
    place = np.full(layout.tensors, -1, np.int64)
    numbers = np.array(list(group), np.int64)
    place[numbers] = np.arange(len(numbers))
    strides = np.array(next(iter(group.values())).strides, np.int64)
    targets = _Targets(tuple(map(flat_bytes, group.values())), strides, place)
    for stack in _stacks(layout.shape[: layout.stack], numbers):
        try:
            reads = plan_reads([Want(layout, (*stack, *inner), item_bytes)], cost, loads)
        except LayoutGap as gap:
            raise LayoutGap(f"{tensor_class.template}: {gap.message}", gap.remedy) from None
        loads = reads.loads
        requests = schedule(reads, CREDIT_BYTES, first_peer=turn % owners)
        for request in range(len(requests)):
            rank = int(requests.peer[request])
            make = partial(_pieces, requests, request, layout, rank, shards[rank], targets)
            _, tensors, rows = requests.copies(request)
            size_bytes = int(requests.size_bytes[request])
            copies.defer(shards[rank].region.arena, size_bytes, len(tensors) * len(rows), make)


def _stacks(sizes: tuple[int, ...], numbers: np.ndarray) -> Iterator[tuple[Runs, ...]]:
    """A few products of ranges of the stack's dimensions that together hold these tensors, each once."""
    if not sizes:
        yield ()
        return
    places = np.unravel_index(numbers, sizes)
    held = [np.unique(indices) for indices in places]
    if np.prod([len(indices) for indices in held]) == len(numbers):
        yield tuple(map(_runs, held))
        return
    rest = np.ravel_multi_index(places[1:], sizes[1:])
    for index in held[0].tolist():
        for inner in _stacks(sizes[1:], np.sort(rest[places[0] == index])):
            yield ((index, index + 1),), *inner


def _runs(indices: np.ndarray) -> Runs:
    """Sorted indices as ranges."""
    bounds = np.flatnonzero(np.diff(indices) != 1) + 1
    starts, stops = indices[[0, *bounds]], indices[[*(bounds - 1), -1]] + 1
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class _Targets:
    """The buffers that tensors are read into, which have equal strides (bytes).

    place: int64, a buffer by a tensor's number.
    """

    buffers: tuple[np.ndarray, ...]
    strides: np.ndarray
    place: np.ndarray


def _pieces(
    requests: ReadRequests, request: int, layout: MeshLayout, rank: int, shard: ClassShard, targets: _Targets
) -> Pieces:
    """The pieces of one request."""
    block, tensors, rows = requests.copies(request)
    item_bytes = int(block.item_bytes[0])
    strides = np.array(row_major(_local_shape(layout, rank), item_bytes), np.int64)
    strips = coalesce(
        block.source[rows] @ strides,
        block.target[rows] @ targets.strides,
        block.extent[rows],
        strides,
        targets.strides,
        item_bytes,
    )
    count, times = len(strips.copy), len(tensors)
    first = shard.offset_bytes + _nth(layout, rank, tensors) * shard.tensor_bytes
    return Pieces(
        Regions.of([shard.region]),
        np.zeros(count * times, np.int32),
        np.repeat(first, count) + np.tile(strips.offset, times),
        np.tile(strips.rows, times),
        np.tile(strips.run, times),
        np.tile(strips.stride, times),
        targets.buffers,
        np.repeat(targets.place[tensors], count).astype(np.int32),
        np.tile(strips.target_offset, times),
        np.tile(strips.target_stride, times),
    )


def _local_shape(layout: MeshLayout, rank: int) -> tuple[int, ...]:
    """The shape of the part of one tensor that an owner holds."""
    return tuple(length(runs) for runs in layout.runs(rank)[layout.stack :])


def _nth(layout: MeshLayout, rank: int, tensors: np.ndarray) -> np.ndarray:
    """int64[T]: the positions of tensors among those of which an owner holds a part."""
    runs = layout.runs(rank)[: layout.stack]
    nth = np.zeros(len(tensors), np.int64)
    numbers = np.unravel_index(tensors, layout.shape[: layout.stack]) if layout.stack else ()
    for index, ranges in zip(numbers, runs, strict=True):
        starts = np.array([start for start, _ in ranges], np.int64)
        before = np.cumsum([0, *(stop - start for start, stop in ranges)])[:-1]
        of = np.searchsorted(starts, index, "right") - 1
        nth = nth * length(ranges) + before[of] + index - starts[of]
    return nth
