"""Sets of ticket ids as half-open ranges: what a checkpoint was trained on, what the ledger has compacted.

Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """An immutable set of integers, kept as sorted, disjoint, non-adjacent (start, stop) pairs."""

    __slots__ = ("_starts", "ranges")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """The union of half-open `ranges`, in any order; empty ones are ignored."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted((int(start), int(stop)) for start, stop in ranges):
            if start >= stop:
                continue
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
            else:
                merged.append((start, stop))
        self.ranges = tuple(merged)
        self._starts = [start for start, _ in merged]

    @classmethod
    def of(cls, ids: Iterable[int]) -> RangeSet:
        """The set of these ids."""
        return cls((number, number + 1) for number in ids)

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._starts, number) - 1
        return index >= 0 and number < self.ranges[index][1]

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.ranges:
            yield from range(start, stop)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __repr__(self) -> str:
        return f"RangeSet({list(self.ranges)})"

    def __or__(self, other: RangeSet) -> RangeSet:
        return RangeSet((*self.ranges, *other.ranges))

    def __sub__(self, other: RangeSet) -> RangeSet:
        left: list[tuple[int, int]] = []
        others = iter(other.ranges)
        removed = next(others, None)
        for start, stop in self.ranges:
            while removed is not None and removed[1] <= start:
                removed = next(others, None)
            while removed is not None and removed[0] < stop:
                left.append((start, removed[0]))
                start = removed[1]
                if start >= stop:
                    break
                removed = next(others, None)
            left.append((start, stop))
        return RangeSet(left)

    def __and__(self, other: RangeSet) -> RangeSet:
        return self - (self - other)

    @property
    def stop(self) -> int:
        """The largest member plus one, 0 if the set is empty."""
        return self.ranges[-1][1] if self.ranges else 0
