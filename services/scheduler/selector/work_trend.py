"""The work of the steps to come, from that of the last ones. Pure.

    (step, device-seconds) of the last STEPS ─► a slope far from what noise makes? ─► extrapolated
                                                              └─ no ─► the mean of the last MEAN

A division that is decided after a step works from the step after the next one on: devices move in the one
between. Where the work drifts, a decision by the last steps would therefore always come too late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, linear_regression

# Steps that a slope is taken over, and the fewest that show one.
STEPS, FEWEST = 8, 5
# Steps of the mean where there is no slope.
MEAN = 3
# A slope counts if it is so many of its standard errors from 0.
SURE = 3.0
# Steps from the last one measured to the first one in another division.
AHEAD = 2
# The work is expected to change by this factor at most meanwhile: a jump among the steps makes a steep line.
MOST = 2.0


def expected(points: Sequence[tuple[int, float]]) -> float:
    """The work AHEAD of the last point. points: (step, work > 0), oldest first, at least one.

    Work grows or falls by a factor a step, so the line is one through logarithms.
    """
    logs = [math.log(work) for _, work in points[-STEPS:]]
    if len(logs) < FEWEST:
        return math.exp(fmean(logs[-MEAN:]))
    steps = [float(step) for step, _ in points[-STEPS:]]
    slope, base = linear_regression(steps, logs)
    apart = math.fsum((log - base - slope * step) ** 2 for step, log in zip(steps, logs, strict=True))
    spread = math.fsum((step - fmean(steps)) ** 2 for step in steps)
    error = math.sqrt(apart / (len(logs) - 2) / spread)
    if abs(slope) <= SURE * error:
        return math.exp(fmean(logs[-MEAN:]))
    change = min(math.log(MOST), max(-math.log(MOST), slope * AHEAD))
    return math.exp(base + slope * steps[-1] + change)
