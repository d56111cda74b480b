"""Every number of metrics.jsonl, by name, as a curve over steps or seconds.

The file is read again as far as it has grown. A run that is rolled back writes some steps again: the last
line of a version counts, as in the report.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from earl.obs.metrics import flat
from earl.obs.tail import Tail

# Steps that are kept; of more, every other one of the older half goes.
STEPS = 40_000
# Names at most: a file of another program may have any number.
NAMES = 1_000
AXES = ("step", "time_s")
Value = TypeVar("Value")
# Points of a curve that are sent.
POINTS = 480


class MetricTable:
    """The numbers of one run's metrics.jsonl in columns. A step without a number has NaN there."""

    def __init__(self, file: Path) -> None:
        self._tail = Tail(file)
        self._columns: dict[str, array[float]] = {}
        self._length = 0

    def update(self) -> bool:
        """Reads what is new; whether there was anything."""
        new = self._tail.read()
        if self._tail.renewed:
            self._columns, self._length = {}, 0
        for record in new:
            self._append(flat(record))
        if self._length > STEPS:
            self._thin()
        return bool(new) or self._tail.renewed

    @property
    def names(self) -> list[str]:
        """Names of the numbers that any step has, sorted, without the axes."""
        return sorted(name for name in self._columns if name not in AXES)

    def series(self, name: str, over: str) -> list[tuple[float, float]]:
        """(step or seconds, value) of the steps that have both, thinned to what a screen can show."""
        values, places = self._columns.get(name), self._columns.get(over)
        if values is None or places is None:
            return []
        return thinned(
            [
                (place, value)
                for place, value in zip(places, values, strict=True)
                if math.isfinite(value) and math.isfinite(place)
            ]
        )

    def columns(self, points: int) -> dict[str, list[float]]:
        """Every number by name, the axes included, in at most `points` rows: means of stretches of steps, at
        the place of their last one."""
        size = max(1, -(-self._length // points))
        return {name: stretched(name, column, size) for name, column in sorted(self._columns.items())}

    def _append(self, record: Mapping[str, Any]) -> None:
        version = record.get("version")
        versions = self._columns.get("version")
        if isinstance(version, (int, float)) and versions is not None:
            length = self._length
            while length and versions[length - 1] >= version:
                length -= 1
            if length < self._length:
                self._truncate(length)
        for name, value in record.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            column = self._columns.get(name)
            if column is None:
                if len(self._columns) >= NAMES:
                    continue
                column = self._columns[name] = array("d", [math.nan]) * self._length
            column.append(float(value))
        self._length += 1
        for column in self._columns.values():
            if len(column) < self._length:
                column.append(math.nan)

    def _truncate(self, length: int) -> None:
        self._length = length
        for column in self._columns.values():
            del column[length:]

    def _thin(self) -> None:
        half = self._length // 2
        for name, column in self._columns.items():
            self._columns[name] = column[:half:2] + column[half:]
        self._length = -(-half // 2) + self._length - half


def fewer(records: Sequence[Value], most: int) -> list[Value]:
    """All of them, or, if there are more than `most`, without every other one of the older half."""
    half = most // 2 if len(records) > most else 0
    return [*records[:half:2], *records[half:]]


def stretched(name: str, column: Sequence[float], size: int) -> list[float]:
    """A column in stretches of `size` rows: the last value of an axis, the mean of other known values."""
    if size == 1:
        return list(column)
    parts = [column[start : start + size] for start in range(0, len(column), size)]
    if name in AXES:
        return [part[-1] for part in parts]
    known = [[value for value in part if math.isfinite(value)] for part in parts]
    return [sum(values) / len(values) if values else math.nan for values in known]


def thinned(every: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means of stretches of equally many points, each at its last one's place; all, if they are few."""
    size = -(-len(every) // POINTS)
    if size <= 1:
        return list(every)
    parts = (every[start : start + size] for start in range(0, len(every), size))
    return [(part[-1][0], sum(value for _, value in part) / len(part)) for part in parts]
