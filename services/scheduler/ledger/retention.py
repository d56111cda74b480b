"""The retention gate: whether a version still does what the run could do in a protected environment. Pure.

    score = reward - lowest                  of a game, 0 or more: lowest is the least that it may earn
    kept  = mean score / mean score in the run's first evaluation, over the tasks of both
    retained unless the whole 95 % interval of `kept` lies below 1 - loss

A reward may be negative, and 1 - loss of a negative number would be more than it: so a score counts from the
lowest reward. For a game of -1, 0 and 1 it is twice the wins and once the draws. Where the first score is 0,
there is nothing to lose. A version of whose games too few were played in both evaluations is not retained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from services.scheduler.ledger.intervals import Interval, mean_interval


@dataclass(frozen=True, slots=True)
class Retention:
    """The part of its first score that a protected environment has kept, and whether that is enough.

    kept: NaN where the first score is 0, its bounds NaN where fewer than two tasks were played.
    """

    kept: Interval
    retained: bool


def retention(
    before: Sequence[float], after: Sequence[float], lowest: float, loss: float, *, enough: bool
) -> Retention:
    """Judges a version by the rewards of tasks in the run's first evaluation and in its own, task by task.

    lowest: the least that an episode may earn. loss: the part of the first score that may be lost. enough:
    more than half of the evaluation's episodes were done in both.
    """
    kept = ratio_interval([value - lowest for value in after], [value - lowest for value in before])
    return Retention(kept, enough and not kept.high < 1 - loss)


def ratio_interval(values: Sequence[float], bases: Sequence[float]) -> Interval:
    """The ratio of two paired samples' means with its 95 % interval; NaN if the mean of `bases` is 0.

    The interval is that of the mean residual, value - ratio * base, over the mean of `bases` (the linearised
    variance of a ratio estimator; Cochran, Sampling Techniques, 1977, 6.4).
    """
    total = math.fsum(bases)
    if not total > 0:
        return Interval()
    ratio = math.fsum(values) / total
    residuals = [value - ratio * base for value, base in zip(values, bases, strict=True)]
    spread = mean_interval(residuals)
    half = (spread.high - spread.low) / 2 * len(bases) / total
    return Interval(ratio, ratio - half, ratio + half)
