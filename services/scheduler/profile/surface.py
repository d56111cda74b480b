"""A positive value over (context length, concurrency), from points that need not form a grid. Pure.

at each length with points     along log concurrency, linear in the logarithm of the value
between two such lengths       along log context, likewise
beyond                         the nearest point that the above covers, times the roofline's ratio
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Point = tuple[float, float]


class Shape(Protocol):
    def at(self, context_tokens: float, concurrency: float) -> float:
        """> 0."""
        ...


@dataclass(frozen=True, slots=True)
class _Corner:
    """What one line of points contributes; all but the weight are logarithms."""

    weight: float
    context: float
    log_value: float
    sequences: float


class Surface:
    """values: > 0, one a point (context in tokens, concurrency); of equal points, the last counts."""

    def __init__(
        self,
        points: Sequence[Point],
        values: Sequence[float],
        shape: Callable[[Sequence[Point], Sequence[float]], Shape],
    ) -> None:
        self._known = dict(zip(points, values, strict=True))
        lines: dict[float, list[tuple[float, float]]] = {}
        for (context, concurrency), value in sorted(self._known.items()):
            lines.setdefault(context, []).append((math.log(concurrency), math.log(value)))
        self._contexts = [math.log(context) for context in lines]
        self._lines = list(lines.values())
        self._shape = shape(list(self._known), list(self._known.values()))

    def at(
        self, context_tokens: float, concurrency: float
    ) -> tuple[float, Literal["measured", "interpolated", "extrapolated"]]:
        """The value there and where it comes from."""
        known = self._known.get((context_tokens, concurrency))
        if known is not None:
            return known, "measured"
        context, sequences = math.log(context_tokens), math.log(concurrency)
        inside = min(max(context, self._contexts[0]), self._contexts[-1])
        above = min(bisect_right(self._contexts, inside), len(self._contexts) - 1)
        below = max(0, above - 1)
        share = _share(inside, self._contexts[below], self._contexts[above])
        corners = [
            _Corner(weight, self._contexts[at], *self._along(at, sequences))
            for at, weight in ((below, 1 - share), (above, share))
            if weight > 0
        ]
        value = math.exp(sum(corner.weight * corner.log_value for corner in corners))
        if inside == context and all(corner.sequences == sequences for corner in corners):
            return value, "interpolated"
        reached = sum(
            corner.weight * math.log(self._shape.at(math.exp(corner.context), math.exp(corner.sequences)))
            for corner in corners
        )
        return value * self._shape.at(context_tokens, concurrency) / math.exp(reached), "extrapolated"

    def _along(self, line: int, sequences: float) -> tuple[float, float]:
        """(log value, log concurrency that it belongs to) of a line, nearest to a log concurrency."""
        points = self._lines[line]
        reached = min(max(sequences, points[0][0]), points[-1][0])
        above = min(bisect_right(points, (reached, math.inf)), len(points) - 1)
        below = max(0, above - 1)
        share = _share(reached, points[below][0], points[above][0])
        return points[below][1] * (1 - share) + points[above][1] * share, reached


def _share(at: float, low: float, high: float) -> float:
    return (at - low) / (high - low) if high > low else 0.0
