"""The distribution of a tensor over owners: boxes, shards and layouts. Pure; integers only.

Every tensor that moves, a token column or a weight, is (name, dtype, shape, shards), each shard a
box that one owner holds. Replicated and tensor-parallel weights, `torch.chunk` slices, DTensor
placements and packed ragged columns all map onto boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from earl.errors import LayoutError, LayoutGap, LayoutOverlap


@dataclass(frozen=True, slots=True)
class Box:
    """Half-open index ranges, one per dimension: start[i] <= index < stop[i].

    A scalar's box has no dimensions and one element. Box((0, 2), (4, 6)) has shape (4, 4).
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.start) != len(self.stop):
            raise LayoutError(
                f"box starts in {len(self.start)} dimensions and stops in {len(self.stop)}",
                "give both one index per dimension",
            )
        for start, stop in zip(self.start, self.stop, strict=True):
            if not 0 <= start <= stop:
                raise LayoutError(f"box {self} has a range {start}:{stop}", "use 0 <= start <= stop")

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """The box of a whole tensor of this shape."""
        return cls((0,) * len(shape), tuple(int(n) for n in shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def slices(self) -> tuple[slice, ...]:
        """Indexes an array whose origin is this box's origin space."""
        return tuple(slice(start, stop) for start, stop in zip(self.start, self.stop, strict=True))

    def contains(self, other: Box) -> bool:
        """True when every element of `other` lies in this box; an empty box lies in every box."""
        if other.size == 0:
            return True
        return all(
            a <= c and d <= b
            for a, b, c, d in zip(self.start, self.stop, other.start, other.stop, strict=True)
        )

    def intersect(self, other: Box) -> Box | None:
        """The common box, or None when no element is common."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        if any(a >= b for a, b in zip(start, stop, strict=True)):
            return None
        return Box(start, stop)

    def subtract(self, other: Box) -> list[Box]:
        """Disjoint boxes that hold this box's elements outside `other`, at most two a dimension."""
        common = self.intersect(other)
        if common is None:
            return [self] if self.size else []
        rest: list[Box] = []
        start, stop = list(self.start), list(self.stop)
        for i in range(len(start)):
            if start[i] < common.start[i]:
                rest.append(Box(tuple(start), (*stop[:i], common.start[i], *stop[i + 1 :])))
            if common.stop[i] < stop[i]:
                rest.append(Box((*start[:i], common.stop[i], *start[i + 1 :]), tuple(stop)))
            start[i], stop[i] = common.start[i], common.stop[i]
        return rest

    def relative_to(self, origin: Sequence[int]) -> Box:
        """The same elements counted from `origin`."""
        return Box(
            tuple(a - o for a, o in zip(self.start, origin, strict=True)),
            tuple(b - o for b, o in zip(self.stop, origin, strict=True)),
        )

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True)) + "]"


@dataclass(frozen=True, slots=True)
class ShardBox:
    """One owner's box of a tensor. Example: ShardBox("trainer-1", Box((4, 0), (8, 16)))."""

    owner: str
    box: Box


@dataclass(frozen=True, slots=True)
class Layout:
    """One tensor sharded over owners: dtype by name ("bfloat16"), the global shape, the shards."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: tuple[ShardBox, ...]

    def validate(self, *, replicas: bool = False) -> None:
        """Raises unless the shards cover the tensor: LayoutGap, and LayoutOverlap unless replicas may be."""
        whole = Box.whole(self.shape)
        boxes: list[Box] = []
        for shard in self.shards:
            if len(shard.box.start) != len(self.shape) or not whole.contains(shard.box):
                raise LayoutError(
                    f"{self.name}: {shard.owner}'s box {shard.box} lies outside shape {self.shape}",
                    "publish boxes in the tensor's global indices",
                )
            boxes.append(shard.box)
        if not replicas:
            self._refuse_overlap(self.shards)
        missing = [whole] if whole.size else []
        for box in dict.fromkeys(boxes):
            missing = [piece for rest in missing for piece in rest.subtract(box)]
        if missing:
            raise LayoutGap(
                f"{self.name}: no shard holds {missing[0]} of shape {self.shape}",
                "have every owner publish its shard",
            )

    def refuse_partial_overlap(self) -> None:
        """Raises LayoutOverlap where boxes have elements in common and are not equal, as replicas are."""
        self._refuse_overlap({shard.box: shard for shard in self.shards}.values())

    def _refuse_overlap(self, shards: Iterable[ShardBox]) -> None:
        # Sweep along the first dimension: shards of a real layout touch few others there.
        ordered = sorted((s for s in shards if s.box.size), key=lambda s: s.box.start)
        for i, shard in enumerate(ordered):
            for other in ordered[i + 1 :]:
                if self.shape and other.box.start[0] >= shard.box.stop[0]:
                    break
                common = shard.box.intersect(other.box)
                if common is not None:
                    raise LayoutOverlap(
                        f"{self.name}: {shard.owner} and {other.owner} both claim {common}",
                        "give every element to one owner",
                    )


def chunk_range(length: int, index: int, count: int) -> tuple[int, int]:
    """The half-open range of chunk `index` of `count`, with torch.chunk's rule for uneven lengths."""
    if not 0 <= index < count:
        raise LayoutError(f"chunk {index} of {count}", "use 0 <= index < count")
    step = -(-length // count)
    return min(index * step, length), min((index + 1) * step, length)
