"""Bounds the workload of the next step by those of the last ones. Pure.

    headroom = GROWTH, or the largest recent growth from one step to the next if that is more,
               but not past GROWTH times the largest recent value

A bound on growth is what makes "never out of memory" a promise: within it, what fits the headroom fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from services.scheduler.selector.decision import Workload

# The largest growth of lengths, or of load, from one step to the next that is always allowed for.
GROWTH = 1.25
# Steps that count as late.
WINDOW = 64
# Headroom is divided into so many equal ratios where not all of it can be had.
LEVELS = 64

# (length in tokens, concurrency)
Corner = tuple[float, float]
Fits = Callable[[Corner], bool]


def headroom(values: Sequence[float]) -> float:
    """The factor, >= GROWTH, by which the last value may grow. values: of the last steps, at least one."""
    jump = max((b / a for a, b in pairwise(values)), default=GROWTH)
    return max(GROWTH, min(jump, GROWTH * max(values) / values[-1]))


def corners(workloads: Sequence[Workload], choices: Sequence[Fits]) -> tuple[Corner, ...]:
    """(length in tokens, concurrency) that have to fit in the next step, as far out as some choice fits them.

    Length and load may grow in the same step, unless the load has never changed. Where no choice fits all
    headroom, each direction in turn is asked for as far as something still fits it and those before.
    Where nothing fits even what was seen last, that is the only corner.
    """
    last = workloads[-1]
    longer = headroom([workload.max_tokens for workload in workloads])
    more = headroom([workload.concurrency for workload in workloads])
    steady = len(workloads) > 1 and all(workload.concurrency == last.concurrency for workload in workloads)
    alive = [fits for fits in choices if fits((last.max_tokens, last.concurrency))]
    furthest: list[Corner] = []
    for length_ratio, load_ratio in [(longer, 1.0), (1.0, more)] if steady else [
        (longer, more), (1.0, more), (longer, 1.0),
    ]:  # fmt: skip
        corner, alive = _furthest(last, length_ratio, load_ratio, alive)
        furthest.append(corner)
    return tuple(furthest)


def _furthest(
    last: Workload, length_ratio: float, load_ratio: float, alive: Sequence[Fits]
) -> tuple[Corner, list[Fits]]:
    """The furthest corner towards the ratios that one of `alive` fits, and those that do."""

    def corner_at(level: int) -> Corner:
        part = level / LEVELS
        return last.max_tokens * length_ratio**part, last.concurrency * load_ratio**part

    corner = corner_at(_highest(lambda level: any(fits(corner_at(level)) for fits in alive)))
    return corner, [fits for fits in alive if fits(corner)]


def _highest(holds: Callable[[int], bool]) -> int:
    """The highest level up to LEVELS that holds, none above one that does not; 0 if none does."""
    if holds(LEVELS):
        return LEVELS
    low, high = 0, LEVELS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
