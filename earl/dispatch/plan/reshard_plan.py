"""Owners change how tensors are sharded over them: which rank sends which boxes where, in which rounds. Pure.

    reshards (boxes by rank, before and after) ─ plan_reshard ─► pieces (source, target, box) of each tensor
    tensors in order ─ rounds ─► parts of pieces, so many at a time that no rank needs much memory for them

Promise: every rank's boxes afterwards are covered exactly once, by what it holds itself where it holds
it, by the least loaded owner elsewhere; the same input gives the same pieces and rounds on every rank.
Tensors that change alike are planned together. Idea: allgather-free resharding (MindSpeed RL, 2507.19017).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from earl.dispatch.layout.box import Box, Layout, ShardBox, chunk_range
from earl.dispatch.plan.boxes import plan


@dataclass(frozen=True, slots=True)
class Reshard:
    """A tensor whose rank r holds before[r] now and after[r] then. item_bytes: of one element.

    Example: Reshard((4,), 4, (Box((0,), (2,)), Box((2,), (4,))), (Box((0,), (4,)), Box((0,), (0,)))).
    """

    shape: tuple[int, ...]
    item_bytes: int
    before: tuple[Box, ...]
    after: tuple[Box, ...]

    def reversed(self) -> Reshard:
        """The same tensor on its way back: from `after` to `before`."""
        return replace(self, before=self.after, after=self.before)


@dataclass(frozen=True, slots=True)
class ReshardPiece:
    """`box`, in the tensor's indices, goes from rank `source` to rank `target`, which may be the same."""

    source: int
    target: int
    box: Box


@dataclass(frozen=True, slots=True)
class ReshardPart:
    """A piece, or a part of one, of tensor number `tensor`."""

    tensor: int
    piece: ReshardPiece


def plan_reshard(reshards: Sequence[Reshard]) -> list[tuple[ReshardPiece, ...]]:
    """The pieces that make each tensor's `after` of its `before`. Raises LayoutGap, LayoutError."""
    alike: dict[Reshard, list[int]] = {}
    for number, reshard in enumerate(reshards):
        alike.setdefault(reshard, []).append(number)
    loads: Counter[str] = Counter()
    planned: list[tuple[ReshardPiece, ...]] = [()] * len(reshards)
    for reshard, numbers in alike.items():
        # Replicas take turns from tensor to tensor.
        turns = min(len(numbers), max(Counter(box for box in reshard.before if box.size).values(), default=1))
        for turn in range(turns):
            chosen = numbers[turn::turns]
            pieces = _pieces(reshard, len(chosen), loads)
            for number in chosen:
                planned[number] = pieces
    return planned


def _pieces(reshard: Reshard, tensors: int, loads: Counter[str]) -> tuple[ReshardPiece, ...]:
    owners = [str(rank) for rank in range(len(reshard.before))]
    shards = tuple(map(ShardBox, owners, reshard.before))
    source = Layout("tensor", "uint8", reshard.shape, shards)
    pieces: list[ReshardPiece] = []
    for target, box in enumerate(reshard.after):
        if not box.size:
            continue
        distance = {owner: float(owner != owners[target]) for owner in owners}
        for copy in plan(source, box, distance, loads):
            start = tuple(a + b for a, b in zip(copy.target.start, box.start, strict=True))
            stop = tuple(a + b for a, b in zip(copy.target.stop, box.start, strict=True))
            pieces.append(ReshardPiece(copy.shard_index, target, Box(start, stop)))
            if copy.shard_index != target:
                loads[owners[copy.shard_index]] += pieces[-1].box.size * reshard.item_bytes * tensors
    return tuple(pieces)


def rounds(
    reshards: Sequence[Reshard], pieces: Sequence[Sequence[ReshardPiece]], chunk_bytes: int
) -> Iterator[list[ReshardPart]]:
    """Rounds of parts that go over the wire together, in the tensors' order, without what stays on its rank.

    In a round no rank sends or receives more than chunk_bytes, nor begins tensors of more bytes than that,
    but for one element or one tensor that alone is larger.
    """
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    begun: Counter[int] = Counter()
    batch: list[ReshardPart] = []
    for number, (reshard, held) in enumerate(zip(reshards, pieces, strict=True)):
        largest = max(1, chunk_bytes // (len(reshard.before) * reshard.item_bytes))
        begins = [after.size * reshard.item_bytes for after in reshard.after]
        for piece in _interleaved(held, largest):
            size = piece.box.size * reshard.item_bytes
            first = not batch or batch[-1].tensor != number
            full = max(sent[piece.source], received[piece.target]) + size > chunk_bytes
            full |= first and any(begun[rank] + more > chunk_bytes for rank, more in enumerate(begins))
            if batch and full:
                yield batch
                batch = []
                for count in (sent, received, begun):
                    count.clear()
            if not batch or batch[-1].tensor != number:
                begun.update(dict(enumerate(begins)))
            sent[piece.source] += size
            received[piece.target] += size
            batch.append(ReshardPart(number, piece))
    if batch:
        yield batch


def _interleaved(pieces: Iterable[ReshardPiece], largest: int) -> Iterator[ReshardPiece]:
    """Pieces that travel, in parts of at most `largest` elements, every pair's first part first."""
    split = [_split(piece, largest) for piece in pieces if piece.source != piece.target]
    for several in zip_longest(*split):
        yield from (part for part in several if part is not None)


def _split(piece: ReshardPiece, largest: int) -> list[ReshardPiece]:
    box = piece.box
    if box.size <= largest:
        return [piece]
    dim = next(i for i, length in enumerate(box.shape) if length > 1)
    length = box.shape[dim]
    count = min(length, -(-box.size // largest))
    parts: list[ReshardPiece] = []
    for index in range(count):
        low, high = chunk_range(length, index, count)
        if low < high:
            start, stop = list(box.start), list(box.stop)
            start[dim], stop[dim] = box.start[dim] + low, box.start[dim] + high
            parts += _split(replace(piece, box=Box(tuple(start), tuple(stop))), largest)
    return parts
