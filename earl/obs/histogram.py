"""Counts of values by size: what quantiles, and Prometheus's histograms, are made of. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def doubling(first: float, count: int) -> tuple[float, ...]:
    """`count` bounds, the first one `first` and each next one twice as large."""
    return tuple(first * 2**at for at in range(count))


# 1 ms to 131 s: how long calls, resets and steps take.
SECONDS = doubling(0.001, 18)


class Histogram:
    """bounds: upper bounds of the buckets, rising; a last bucket takes what is above all of them."""

    __slots__ = ("bounds", "counts", "longest", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.longest = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        if value > self.longest:
            self.longest = value

    def quantile(self, share: float) -> float:
        """The value that `share` of all are not larger than, as the upper bound of its bucket, but never
        more than the longest; 0 without any."""
        wanted, seen = share * self.count, 0
        for at, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return min(self.bounds[at], self.longest) if at < len(self.bounds) else self.longest
        return 0.0
