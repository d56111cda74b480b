"""A positive value over (context length, concurrency), from points that need not form a grid. Pure.

at each length with points     along log concurrency, linear in the logarithm of the value;
                               beyond its points the nearest one, times the roofline's ratio
between two such lengths       along log context, in the same way
beyond all lengths             the nearest, times the roofline's ratio

So it is continuous everywhere.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

Point = tuple[float, float]


class SurfaceShape(Protocol):
    def value_at(self, context_tokens: float, concurrency: float) -> float:
        """The value at a point; greater than 0."""
        ...


class Surface:
    """values: > 0, one a point (context in tokens, concurrency); of equal points, the last counts."""

    def __init__(
        self,
        points: Sequence[Point],
        values: Sequence[float],
        shape: Callable[[Sequence[Point], Sequence[float]], SurfaceShape],
    ) -> None:
        self._known = dict(zip(points, values, strict=True))
        lines: dict[float, list[tuple[float, float]]] = {}
        for (context, concurrency), value in sorted(self._known.items()):
            lines.setdefault(context, []).append((math.log(concurrency), math.log(value)))
        self._contexts = [math.log(context) for context in lines]
        self._lines = list(lines.values())
        self._shape = shape(list(self._known), list(self._known.values()))

    def value_at(
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
        ends = [(line, weight) for line, weight in ((below, 1 - share), (above, share)) if weight > 0]
        lines = [(weight, *self._along(line, sequences)) for line, weight in ends]
        log_value = sum(weight * value for weight, value, _ in lines)
        if inside == context and not any(beyond for _, _, beyond in lines):
            return math.exp(log_value), "interpolated"
        log_value += self._way((inside, sequences), (context, sequences))
        return math.exp(log_value), "extrapolated"

    def _along(self, line: int, sequences: float) -> tuple[float, bool]:
        """(log value of a line at a log concurrency, whether that lies beyond its points)."""
        points = self._lines[line]
        reached = min(max(sequences, points[0][0]), points[-1][0])
        above = min(bisect_right(points, (reached, math.inf)), len(points) - 1)
        below = max(0, above - 1)
        share = _share(reached, points[below][0], points[above][0])
        value = points[below][1] * (1 - share) + points[above][1] * share
        if reached == sequences:
            return value, False
        context = self._contexts[line]
        return value + self._way((context, reached), (context, sequences)), True

    def _way(self, start: Point, end: Point) -> float:
        """Logarithm of the shape's ratio between two points, given as logarithms."""
        if start == end:
            return 0.0
        at_end, at_start = (self._shape.value_at(*map(math.exp, point)) for point in (end, start))
        return math.log(at_end / at_start)


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.0
