"""Which point of a profile is measured next, and what the measured ones amount to. Pure: time is an argument.

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
class _Found:
    rates: list[float] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)
    # Seconds of the last visit, what prepared it included.
    visit_s: float = 0.0


class ProfileProgress:
    """One parallelism's points: what is known of each, and what is still to do."""

    def __init__(self, parallelism: Parallelism, points: Iterable[ProfilePoint]) -> None:
        self.parallelism = parallelism
        self.points = sorted(set(points), key=_cost)
        self._found: dict[ProfilePoint, _Found] = {}
        self._bursts: list[ProfilePoint] = []

    # --- what is found ------------------------------------------------------------------------

    def note(self, point: ProfilePoint, rate: float, visit_s: float, fraction: float | None) -> None:
        """One window. rate: tokens per device and second; visit_s: all that it took."""
        found = self._found.setdefault(point, _Found())
        found.rates.append(rate)
        found.visit_s = visit_s
        if fraction is not None:
            found.fractions.append(fraction)

    def note_oom(self, point: ProfilePoint) -> None:
        """It does not fit."""
        if not self.bursts(point):
            self._bursts = [one for one in self._bursts if not point.within(one)] + [point]

    def bursts(self, point: ProfilePoint) -> bool:
        """It is known not to fit."""
        return any(one.within(point) for one in self._bursts)

    # --- what is to do ------------------------------------------------------------------------

    def lacking(self) -> list[ProfilePoint]:
        """Points that have too few windows, cheap ones first."""
        return [one for one in self.points if self.windows(one) < LEAST and not self.bursts(one)]

    def next(self, left_s: float, among: Iterable[ProfilePoint] | None = None) -> ProfilePoint | None:
        """The point to visit, so that as many as possible become complete in the time that is left; None if
        there is nothing to do, or no time for it. among: points that may be visited; None: any."""
        allowed = set(self.points if among is None else among)
        for most in (LEAST, MOST):
            open_ = [
                one
                for one in self.points
                if one in allowed and self.windows(one) < most and not self.bursts(one)
            ]
            affordable = []
            left = left_s
            for one in open_:
                left -= self._visit_s(one) * (most - self.windows(one))
                if left <= 0:
                    break
                affordable.append(one)
            if affordable:
                return min(affordable, key=lambda one: (self.windows(one), _cost(one)))
            if open_:
                return None
        return None

    def windows(self, point: ProfilePoint) -> int:
        """How many it has."""
        return len(self._found[point].rates) if point in self._found else 0

    def _visit_s(self, point: ProfilePoint) -> float:
        """Of a point that was not visited: of the dearest one that was, in proportion to their work."""
        if point in self._found:
            return self._found[point].visit_s
        dearest = max(self._found, key=_cost, default=None)
        if dearest is None:
            return 0.0
        return self._found[dearest].visit_s * max(1.0, point.work / dearest.work)

    # --- what it amounts to -------------------------------------------------------------------

    def said(self, point: ProfilePoint) -> str:
        """In words, of a point that was visited."""
        found = self._found[point]
        memory = f", {max(found.fractions):.1%} of memory" if found.fractions else ""
        return f"{statistics.median(found.rates):.4g} tokens/s on each device{memory}"

    def rows(self, stage: str) -> list[ProfileRow]:
        """A row for every point with enough windows, medians of them, and for the points that do not fit."""
        rows = [
            ProfileRow(
                stage,
                self.parallelism,
                point.context_tokens,
                point.concurrency,
                statistics.median(found.rates),
                max(found.fractions, default=None),
            )
            for point, found in self._found.items()
            if len(found.rates) >= LEAST
        ]
        rows += [ProfileRow(stage, self.parallelism, *point, None, None, oom=True) for point in self._bursts]
        return sorted(rows, key=lambda row: (row.context_tokens, row.concurrency))


def halves(points: list[ProfilePoint]) -> tuple[list[ProfilePoint], list[ProfilePoint]]:
    """(the cheaper half, the dearer half): what is tried where all at once do not fit."""
    ordered = sorted(points, key=_cost)
    middle = len(ordered) // 2
    return ordered[:middle], ordered[middle:]


def _cost(point: ProfilePoint) -> tuple[int, int]:
    return point.work, point.context_tokens
