"""Chooses the next point of a profile to measure, and summarises the measured ones. Pure: time is an
argument.

    cheap points first, one window each ─► again, round after round ─► until every point has MOST windows,
                                                                       or the time left buys no further point

Windows of all points take turns, so that a slow phase of the machine spoils one window of many points, which
their medians leave out, and not all windows of one. What does not fit is not tried at any length and
concurrency that are both as high.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from earl.parallelism import Parallelism
from services.scheduler.profile.rows import ProfileRow

# Windows that a point needs to count, and so many are as good as more.
LEAST, MOST = 3, 5


class ProfilePoint(NamedTuple):
    """concurrency: of the whole pool."""

    context_tokens: int
    concurrency: int

    @property
    def work(self) -> int:
        return self.context_tokens * self.concurrency

    def within(self, other: ProfilePoint) -> bool:
        """Neither longer nor more concurrent."""
        return self.context_tokens <= other.context_tokens and self.concurrency <= other.concurrency


@dataclass(slots=True)
class _Windows:
    rates: list[float] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)
    # Seconds of the last visit, what prepared it included.
    visit_s: float = 0.0


class ProfileProgress:
    """One parallelism's points: what is known of each, and what is still to do."""

    def __init__(self, parallelism: Parallelism, points: Iterable[ProfilePoint]) -> None:
        self.parallelism = parallelism
        self.points = sorted(set(points), key=_cost)
        self._windows: dict[ProfilePoint, _Windows] = {}
        self._bursts: list[ProfilePoint] = []

    # --- what is found ------------------------------------------------------------------------

    def note(self, point: ProfilePoint, rate: float, visit_s: float, fraction: float | None) -> None:
        """One window. rate: tokens per device and second; visit_s: all that it took."""
        windows = self._windows.setdefault(point, _Windows())
        windows.rates.append(rate)
        windows.visit_s = visit_s
        if fraction is not None:
            windows.fractions.append(fraction)

    def note_oom(self, point: ProfilePoint) -> None:
        """Takes note that the point does not fit into memory."""
        if not self.bursts(point):
            self._bursts = [other for other in self._bursts if not point.within(other)] + [point]

    def bursts(self, point: ProfilePoint) -> bool:
        """Returns whether the point is known not to fit into memory."""
        return any(other.within(point) for other in self._bursts)

    # --- what is to do ------------------------------------------------------------------------

    def lacking(self) -> list[ProfilePoint]:
        """Points that have too few windows, cheap ones first."""
        return [point for point in self.points if self.windows(point) < LEAST and not self.bursts(point)]

    def next(self, left_s: float, among: Iterable[ProfilePoint] | None = None) -> ProfilePoint | None:
        """The point to visit, so that as many as possible become complete in the time that is left; None if
        there is nothing to do, or no time for it. among: points that may be visited; None: any."""
        allowed = set(self.points if among is None else among)
        for most in (LEAST, MOST):
            open_ = [
                point
                for point in self.points
                if point in allowed and self.windows(point) < most and not self.bursts(point)
            ]
            affordable = []
            left = left_s
            for point in open_:
                left -= self._visit_s(point) * (most - self.windows(point))
                if left <= 0:
                    break
                affordable.append(point)
            if affordable:
                return min(affordable, key=lambda point: (self.windows(point), _cost(point)))
            if open_:
                return None
        return None

    def windows(self, point: ProfilePoint) -> int:
        """Number of windows that the point has."""
        return len(self._windows[point].rates) if point in self._windows else 0

    def _visit_s(self, point: ProfilePoint) -> float:
        """Seconds of a visit; of a point not visited, those of the costliest that was, scaled by work."""
        if point in self._windows:
            return self._windows[point].visit_s
        dearest = max(self._windows, key=_cost, default=None)
        if dearest is None:
            return 0.0
        return self._windows[dearest].visit_s * max(1.0, point.work / dearest.work)

    # --- what it amounts to -------------------------------------------------------------------

    def describe(self, point: ProfilePoint) -> str:
        """The figures of a point that was visited, in words."""
        windows = self._windows[point]
        memory = f", {max(windows.fractions):.1%} of memory" if windows.fractions else ""
        return f"{statistics.median(windows.rates):.4g} tokens/s on each device{memory}"

    def rows(self, stage: str) -> list[ProfileRow]:
        """A row for every point with enough windows, medians of them, and for the points that do not fit.

        What ran out of memory in the end has no throughput, whatever its earlier windows were.
        """
        rows = [
            ProfileRow(
                stage,
                self.parallelism,
                point.context_tokens,
                point.concurrency,
                statistics.median(windows.rates),
                max(windows.fractions, default=None),
            )
            for point, windows in self._windows.items()
            if len(windows.rates) >= LEAST and not self.bursts(point)
        ]
        rows += [ProfileRow(stage, self.parallelism, *point, None, None, oom=True) for point in self._bursts]
        return sorted(rows, key=lambda row: (row.context_tokens, row.concurrency))


def halves(points: list[ProfilePoint]) -> tuple[list[ProfilePoint], list[ProfilePoint]]:
    """(the cheaper half, the more expensive half): what is tried where all at once do not fit."""
    ordered = sorted(points, key=_cost)
    middle = len(ordered) // 2
    return ordered[:middle], ordered[middle:]


def _cost(point: ProfilePoint) -> tuple[int, int]:
    return point.work, point.context_tokens
