"""The activity of each process, from timeline.jsonl: the share of every stretch of the run that each activity
took.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from earl.obs.tail import Tail

# Stretches at most; where the run is longer, two become one.
STRETCHES = 160
FIRST_S = 0.5
# Processes and activities at most: a file of another program may have any number.
ROWS = 64


class BusyTable:
    """Seconds of every activity in stretches of equal length, from the first span on."""

    def __init__(self, file: Path) -> None:
        self._tail = Tail(file)
        self._forget()

    def _forget(self) -> None:
        self._origin_ns = 0
        self._stretch_s = FIRST_S
        self._rows: dict[tuple[str, str], array[float]] = {}

    def update(self) -> bool:
        """Reads what is new; whether there was anything."""
        spans = self._tail.read()
        if self._tail.renewed:
            self._forget()
        for span in spans:
            if {"who", "what", "start_ns", "end_ns"} <= span.keys():
                self._add(str(span["who"]), str(span["what"]), int(span["start_ns"]), int(span["end_ns"]))
        return bool(spans) or self._tail.renewed

    def section(self) -> dict[str, Any]:
        """start_ms: Unix time of the first stretch; stretch_s; rows of who, what, and shares:
        fractions (0 to 1) of each stretch."""
        length = max(map(len, self._rows.values()), default=0)
        rows = [
            {"who": who, "what": what, "shares": self._shares(seconds, length)}
            for (who, what), seconds in sorted(self._rows.items())
        ]
        return {"start_ms": self._origin_ns // 10**6, "stretch_s": self._stretch_s, "rows": rows}

    def _shares(self, seconds: array[float], length: int) -> list[float]:
        # Activities of one process may overlap, as the episodes of a rollout worker do.
        shares = [min(1.0, value / self._stretch_s) for value in seconds]
        return shares + [0.0] * (length - len(shares))

    def _add(self, who: str, what: str, start_ns: int, end_ns: int) -> None:
        if not self._rows:
            self._origin_ns = start_ns
        row = self._rows.get((who, what))
        if row is None:
            if len(self._rows) >= ROWS:
                return
            row = self._rows[who, what] = array("d")
        start_s = max(0.0, (start_ns - self._origin_ns) / 1e9)
        end_s = max(start_s, (end_ns - self._origin_ns) / 1e9)
        while end_s >= STRETCHES * self._stretch_s:
            self._halve()
        row = self._rows[who, what]
        last = int(end_s / self._stretch_s)
        row.extend([0.0] * (last + 1 - len(row)))
        for index in range(int(start_s / self._stretch_s), last + 1):
            begins_s = index * self._stretch_s
            row[index] += max(0.0, min(end_s, begins_s + self._stretch_s) - max(start_s, begins_s))

    def _halve(self) -> None:
        self._stretch_s *= 2
        for key, row in self._rows.items():
            even, odd = row[::2], row[1::2]
            odd.extend([0.0] * (len(even) - len(odd)))
            self._rows[key] = array("d", map(sum, zip(even, odd, strict=True)))
