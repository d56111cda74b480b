"""Bounds the workload of the next step by those of all steps before it. Pure.

    headroom = GROWTH, or the largest growth yet from one step to the next if that is more,
               but not past GROWTH times the largest value yet, nor past the workload's own bound

A bound on growth is what makes "never out of memory" a promise: within it, what fits the headroom fits. What
has jumped once may jump again, however long ago that was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.scheduler.selector.decision import Workload

# The largest growth of lengths, or of load, from one step to the next that is always allowed for.
GROWTH = 1.25
# Headroom is divided into so many equal ratios where not all of it can be had.
LEVELS = 64

# (length in tokens, concurrency)
Corner = tuple[float, float]
Fits = Callable[[Corner], bool]


@dataclass(slots=True)
class Growth:
    """A number over the steps of a run: the last and the largest, and by how much it grew at once."""

    last: float = 0.0
    most: float = 0.0
    jump: float = 0.0
    steady: bool = True

    def add(self, value: float) -> None:
        """Takes the next step's value, > 0."""
        if self.last:
            self.jump = max(self.jump, value / self.last)
            self.steady = self.steady and value == self.last
        self.last, self.most = value, max(self.most, value)

    @property
    def factor(self) -> float:
        """The factor, >= GROWTH, by which the last value may grow."""
        return max(GROWTH, min(self.jump, GROWTH * self.most / self.last))


@dataclass(slots=True)
class PastWorkloads:
    """The lengths and loads of all steps. steps: how many there were."""

    length: Growth = field(default_factory=Growth)
    load: Growth = field(default_factory=Growth)
    steps: int = 0

    def add(self, workload: Workload) -> None:
        self.length.add(workload.max_tokens)
        self.load.add(workload.concurrency)
        self.steps += 1


def corners(
    past: PastWorkloads, choices: Sequence[Fits], bound: Corner = (math.inf, math.inf)
) -> tuple[Corner, ...]:
    """(length in tokens, concurrency) that have to fit in the next step, as far out as some choice fits them.

    past: of one step at least. bound: what no workload exceeds; one that did is not expected to grow further.
    Length and load may grow in the same step, unless the load has never changed. Where no choice fits all
    headroom, each direction in turn is asked for as far as something still fits it and those before.
    Where nothing fits even what was seen last, that is the only corner.
    """
    last = (past.length.last, past.load.last)
    limit = (max(last[0], bound[0]), max(last[1], bound[1]))
    longer, more = min(past.length.factor, limit[0] / last[0]), min(past.load.factor, limit[1] / last[1])
    steady = past.steps > 1 and past.load.steady
    alive = [fits for fits in choices if fits(last)]
    furthest: list[Corner] = []
    for length_ratio, load_ratio in [(longer, 1.0), (1.0, more)] if steady else [
        (longer, more), (1.0, more), (longer, 1.0),
    ]:  # fmt: skip
        corner, alive = _furthest(last, limit, (length_ratio, load_ratio), alive)
        furthest.append(corner)
    return tuple(furthest)


def described(past: PastWorkloads, furthest: Sequence[Corner], bound: Corner) -> str:
    """The headroom that the corners assume: "801 x 1.25 = 1,001 tokens, 10 x 1.25 = 12.5 sequences".

    It is told where the bound, or what any layout holds, makes it less than the growth that is expected.
    """
    parts: list[str] = []
    for axis, (growth, unit) in enumerate(((past.length, "tokens"), (past.load, "sequences"))):
        value = max(corner[axis] for corner in furthest)
        ratio, short = value / growth.last, value < growth.last * growth.factor * (1 - 1e-9)
        reason = (
            "" if not short else ", the bound" if value >= bound[axis] else ", the most that any layout holds"
        )
        parts.append(f"{_number(growth.last)} x {ratio:.3g} = {_number(value)} {unit}{reason}")
    return ", ".join(parts)


def _furthest(
    last: Corner, limit: Corner, ratios: tuple[float, float], alive: Sequence[Fits]
) -> tuple[Corner, list[Fits]]:
    """The furthest corner towards the ratios that one of `alive` fits, and those that do.

    limit: past which no corner is.
    """

    def corner_at(level: int) -> Corner:
        part = level / LEVELS
        length, load = (value * ratio**part for value, ratio in zip(last, ratios, strict=True))
        return min(length, limit[0]), min(load, limit[1])

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


def _number(value: float) -> str:
    """Whole where it is large."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
