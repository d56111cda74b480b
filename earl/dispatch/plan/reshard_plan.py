"""Owners change how tensors are cut among them: who sends which boxes to whom, and in which rounds. Pure.

    recuts (boxes by rank, before and after) ─ exchange ─► pieces (source, target, box) of each tensor
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

    Example: Recut((4,), 4, (Box((0,), (2,)), Box((2,), (4,))), (Box((0,), (4,)), Box((0,), (0,)))).
    """

    shape: tuple[int, ...]
    item_bytes: int
    before: tuple[Box, ...]
    after: tuple[Box, ...]

    def reversed(self) -> Reshard:
        """The way back."""
        return replace(self, before=self.after, after=self.before)


@dataclass(frozen=True, slots=True)
class ReshardPiece:
    """`box`, in the tensor's indices, goes from rank `source` to rank `target`; perhaps to itself."""

    source: int
    target: int
    box: Box


@dataclass(frozen=True, slots=True)
class ReshardPart:
    """A piece, or a part of one, of tensor number `tensor`."""

    tensor: int
    piece: ReshardPiece


def plan_reshard(recuts: Sequence[Reshard]) -> list[tuple[ReshardPiece, ...]]:
    """The pieces that make each tensor's `after` of its `before`. Raises LayoutGap, LayoutError."""
    alike: dict[Reshard, list[int]] = {}
    for number, recut in enumerate(recuts):
        alike.setdefault(recut, []).append(number)
    loads: Counter[str] = Counter()
    found: list[tuple[ReshardPiece, ...]] = [()] * len(recuts)
    for recut, numbers in alike.items():
        # Replicas take turns from tensor to tensor.
        turns = min(len(numbers), max(Counter(box for box in recut.before if box.size).values(), default=1))
        for turn in range(turns):
            chosen = numbers[turn::turns]
            pieces = _pieces(recut, len(chosen), loads)
            for number in chosen:
                found[number] = pieces
    return found


def _pieces(recut: Reshard, tensors: int, loads: Counter[str]) -> tuple[ReshardPiece, ...]:
    owners = [str(rank) for rank in range(len(recut.before))]
    shards = tuple(map(ShardBox, owners, recut.before))
    source = Layout("tensor", "uint8", recut.shape, shards)
    found: list[ReshardPiece] = []
    for target, wanted in enumerate(recut.after):
        if not wanted.size:
            continue
        distance = {owner: float(owner != owners[target]) for owner in owners}
        for copy in plan(source, wanted, distance, loads):
            start = tuple(a + b for a, b in zip(copy.target.start, wanted.start, strict=True))
            stop = tuple(a + b for a, b in zip(copy.target.stop, wanted.start, strict=True))
            found.append(ReshardPiece(copy.shard_index, target, Box(start, stop)))
            if copy.shard_index != target:
                loads[owners[copy.shard_index]] += found[-1].box.size * recut.item_bytes * tensors
    return tuple(found)


def rounds(
    recuts: Sequence[Reshard], pieces: Sequence[Sequence[ReshardPiece]], chunk_bytes: int
) -> Iterator[list[ReshardPart]]:
    """What goes over the wire at once, tensor by tensor in order; what stays on its rank is left out.

    In a round no rank sends or receives more than chunk_bytes, nor begins tensors of more bytes than that,
    but for one element or one tensor that alone is larger.
    """
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    begun: Counter[int] = Counter()
    batch: list[ReshardPart] = []
    for number, (recut, held) in enumerate(zip(recuts, pieces, strict=True)):
        largest = max(1, chunk_bytes // (len(recut.before) * recut.item_bytes))
        begins = [after.size * recut.item_bytes for after in recut.after]
        for piece in _interleaved(held, largest):
            size = piece.box.size * recut.item_bytes
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
    cut = [_cut(piece, largest) for piece in pieces if piece.source != piece.target]
    for several in zip_longest(*cut):
        yield from (part for part in several if part is not None)


def _cut(piece: ReshardPiece, largest: int) -> list[ReshardPiece]:
    box = piece.box
    if box.size <= largest:
        return [piece]
    dim = next(i for i, length in enumerate(box.shape) if length > 1)
    length = box.shape[dim]
    count = min(length, -(-box.size // largest))
    found: list[ReshardPiece] = []
    for index in range(count):
        low, high = chunk_range(length, index, count)
        if low < high:
            start, stop = list(box.start), list(box.stop)
            start[dim], stop[dim] = box.start[dim] + low, box.start[dim] + high
            found += _cut(replace(piece, box=Box(tuple(start), tuple(stop))), largest)
    return found
