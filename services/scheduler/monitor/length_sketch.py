"""Lengths in tokens: histograms of steps, and a decaying sketch of quantiles in bounded memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

RELATIVE_ERROR = 0.01
_GAMMA_LOG = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
# Below this weight a bucket is forgotten.
FORGET_WEIGHT = 1e-3


# Bins of a histogram per doubling of the length: each is 19 % wide.
BINS_PER_OCTAVE = 4


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """A histogram of lengths: counts[i] of them fell into bin first + i.

    Bin b holds lengths from 2 ** (b / per_octave) tokens up to, and without, those of bin b + 1.
    """

    first: int = 0
    counts: tuple[int, ...] = ()
    per_octave: int = BINS_PER_OCTAVE


def histogram(lengths: Sequence[int]) -> LengthHistogram:
    """The histogram of lengths in tokens; those below 1 count as 1."""
    # The addend keeps 2 ** n, whose logarithm may fall short of n, in its own bin.
    bins = Counter(int(BINS_PER_OCTAVE * math.log2(max(1, tokens)) + 1e-9) for tokens in lengths)
    if not bins:
        return LengthHistogram()
    first, last = min(bins), max(bins)
    return LengthHistogram(first, tuple(bins[number] for number in range(first, last + 1)))


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Summary of lengths in tokens; all 0 when nothing was counted."""

    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    max: float = 0.0


class LengthSketch:
    """A histogram with logarithmic buckets: any quantile within RELATIVE_ERROR of the exact one.

    The bucket scheme is DDSketch's (Masson, Rim, Lee, VLDB 2019). Weights may be fractional, so that
    the past can fade: that is why no library stands here. ddsketch 3.0 has weights, but cannot scale them,
    takes ranks in whole counts, and never forgets a bucket; the sketches of datasketches 5.2 (KLL, REQ,
    t-digest) count every value as one.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, float] = {}
        self._zero = 0.0
        self._sum = 0.0

    @property
    def weight(self) -> float:
        """Total weight of what is remembered."""
        return self._zero + sum(self._buckets.values())

    def add(self, tokens: int, weight: float = 1.0) -> None:
        """Counts one length, in tokens (>= 0)."""
        if tokens <= 0:
            self._zero += weight
            return
        bucket = _bucket(tokens)
        self._buckets[bucket] = self._buckets.get(bucket, 0.0) + weight
        self._sum += tokens * weight

    def decay(self, factor: float) -> None:
        """Multiplies every weight by `factor` (0..1) and forgets what became negligible."""
        self._zero = self._zero * factor if self._zero * factor >= FORGET_WEIGHT else 0.0
        self._sum *= factor
        for bucket in list(self._buckets):
            weight = self._buckets[bucket] * factor
            if weight >= FORGET_WEIGHT:
                self._buckets[bucket] = weight
            else:
                del self._buckets[bucket]
                self._sum = max(0.0, self._sum - weight * self._value(bucket))

    def quantile(self, fraction: float) -> float:
        """Length in tokens below which `fraction` (0..1) of the weight lies; 0 if nothing was counted."""
        total = self.weight
        if total <= 0:
            return 0.0
        passed = self._zero
        if self._zero > 0 and fraction * total <= passed:
            return 0.0
        buckets = sorted(self._buckets)
        for bucket in buckets:
            passed += self._buckets[bucket]
            # The tolerance keeps fractional weights from skipping the last bucket.
            if passed >= fraction * total - 1e-9:
                return self._value(bucket)
        return self._value(buckets[-1]) if buckets else 0.0

    def summary(self) -> Quantiles:
        """Mean, median, 95th percentile and maximum."""
        total = self.weight
        if total <= 0:
            return Quantiles()
        return Quantiles(self._sum / total, self.quantile(0.5), self.quantile(0.95), self.quantile(1.0))

    def _value(self, bucket: int) -> float:
        # Midpoint of (gamma^(bucket-1), gamma^bucket] in the sense that bounds the relative error.
        return 2 * math.exp(bucket * _GAMMA_LOG) / (math.exp(_GAMMA_LOG) + 1)


@lru_cache(maxsize=1 << 14)
def _bucket(tokens: int) -> int:
    """The bucket of a length > 0. Cached, for episodes and turns have mostly lengths that others had."""
    return math.ceil(math.log(tokens) / _GAMMA_LOG)
