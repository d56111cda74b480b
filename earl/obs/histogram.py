"""Histograms: counts of values by size, from which quantiles are estimated. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def doubling(first: float, count: int) -> tuple[float, ...]:
    """`count` bounds, the first one `first` and each next one twice as large."""
    return tuple(first * 2**i for i in range(count))


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
        """The quantile `share` (0 to 1): its bucket's upper bound, at most the largest value; 0 if empty."""
        least, counted = share * self.count, 0
        for bucket, count in enumerate(self.counts):
            counted += count
            if count and counted >= least:
                return min(self.bounds[bucket], self.longest) if bucket < len(self.bounds) else self.longest
        return 0.0
