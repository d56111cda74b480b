"""95 % confidence intervals of an evaluation's figures, with nothing but `math`. Pure.

Means and paired differences have Student's t interval (as recommended for evaluations of language
models by Miller 2024, arXiv 2411.00640, §2 and §4, with t for the normal quantile so that small
evaluations are not overconfident), rates Wilson's score interval (Wilson 1927). A t interval knows
nothing but the spread it has seen: of values that are all equal it has no width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

CONFIDENCE = 0.95
NORMAL_QUANTILE = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
# From here on the expansion of the quantile is right to 1e-7.
EXPANSION_DEGREES = 40


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the bounds of its 95 % confidence interval; NaN where there is none."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean and its t interval; no bounds for a single value."""
    count = len(values)
    if not count:
        return Interval()
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = t_quantile(count - 1) * math.sqrt(variance / count)
    return Interval(mean, mean - half, mean + half)


def wilson_interval(successes: float, count: int) -> Interval:
    """The rate successes / count and its score interval, within [0, 1]."""
    if count <= 0:
        return Interval()
    rate, square = successes / count, NORMAL_QUANTILE**2
    scale = 1 + square / count
    centre = (rate + square / (2 * count)) / scale
    half = NORMAL_QUANTILE / scale * math.sqrt(rate * (1 - rate) / count + square / (4 * count**2))
    return Interval(rate, min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half)))


@lru_cache(maxsize=1024)
def t_quantile(degrees: int) -> float:
    """Returns the bound that |t| of Student's t with so many degrees of freedom exceeds with probability
    0.05.

    Up to 40 degrees by bisection of the exact distribution, above by the expansion in 1 / degrees
    (Abramowitz and Stegun 26.7.3, 26.7.4 and 26.7.5).
    """
    if degrees < 1:
        raise ValueError(f"t with {degrees} degrees of freedom")
    if degrees > EXPANSION_DEGREES:
        return _expanded(degrees)
    low, high = 0.0, 16.0
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < CONFIDENCE else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """Probability that |Student's t| is at most `t`: a finite sum for whole degrees of freedom."""
    angle = math.atan2(t, math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(1 + odd, degrees, 2):
        total += term
        term *= cosine**2 * power / (power + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _expanded(degrees: int) -> float:
    x = NORMAL_QUANTILE
    return (
        x
        + (x**3 + x) / (4 * degrees)
        + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * degrees**2)
        + (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * degrees**3)
        + (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / (92160 * degrees**4)
    )
