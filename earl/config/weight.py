"""The weight of an environment in a mixture: a number, or a schedule over the steps of training. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import PlainValidator

from earl.config.takes import Takes

# (step, weight), ascending by step: linear between them, constant before the first and after the last.
Schedule = tuple[tuple[int, float], ...]
TAKES = (
    "a number, at least 0, or a list of [step, weight] with ascending steps, and weights of at least 0 "
    "that are not all 0"
)


def _weight(value: Any) -> float | list[list[int | float]]:
    """A checked weight. Raises ValueError for what is neither form."""
    if not isinstance(value, list):
        if _is_number(value) and value >= 0:
            return float(value)
        raise ValueError("no weight")
    points: list[list[int | float]] = []
    for point in value:
        if not (isinstance(point, list | tuple) and len(point) == 2 and all(map(_is_number, point))):
            raise ValueError("no pair of a step and a weight")
        step, weight = point
        if not isinstance(step, int) or step <= (points[-1][0] if points else -1) or weight < 0:
            raise ValueError("no ascending step, or a weight below 0")
        points.append([step, float(weight)])
    if not any(weight for _, weight in points):
        raise ValueError("no weight above 0")
    return points


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


Weight = Annotated[float | list[list[int | float]], PlainValidator(_weight), Takes(TAKES)]


def schedule_of(weight: float | list[list[int | float]]) -> Schedule:
    """A weight as a schedule; a number is one of a single point."""
    if isinstance(weight, list):
        return tuple((int(step), float(part)) for step, part in weight)
    return ((0, float(weight)),)


def weight_at(schedule: Schedule, step: int) -> float:
    """The weight at a step of training, counted from 0."""
    before = schedule[0]
    for point in schedule:
        if step <= point[0]:
            if point[0] == before[0]:
                return point[1]
            part = (step - before[0]) / (point[0] - before[0])
            return before[1] + part * (point[1] - before[1])
        before = point
    return before[1]


def first_step_without_weight(schedules: Sequence[Schedule]) -> int | None:
    """The first step at which all weights are 0; None if there is none.

    Weights are at least 0 and linear between their points: if all are 0 at a step, they are 0 at a point next
    to it too.
    """
    steps = sorted({0, *(step for schedule in schedules for step, _ in schedule)})
    return next(
        (step for step in steps if not any(weight_at(schedule, step) for schedule in schedules)), None
    )
