"""Lengths of the episodes that each step trained on, as columns of a heat map. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COLUMNS = 96


@dataclass(frozen=True, slots=True)
class LengthColumn:
    """Lengths that steps `first` to `last` trained on: bin → trajectories; tokens: sum over all of them."""

    first: int
    last: int
    counts: Mapping[int, int]
    tokens: float

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def columns(records: Sequence[Mapping[str, object]]) -> tuple[list[LengthColumn], int]:
    """Returns at most COLUMNS columns of metrics records that have a histogram, and its bins per octave."""
    steps = []
    per_octave = 0
    for record in records:
        counts, first = record.get("length_histogram.counts"), record.get("length_histogram.first")
        width, mean = record.get("length_histogram.per_octave"), record.get("length_mean")
        if isinstance(counts, list) and isinstance(first, int) and isinstance(width, int) and counts:
            step = int(str(record["step"]))
            bins = {first + place: int(count) for place, count in enumerate(counts) if count}
            tokens = float(mean) * sum(bins.values()) if isinstance(mean, (int, float)) else math.nan
            steps.append(LengthColumn(step, step, bins, tokens))
            per_octave = width
    size = math.ceil(len(steps) / COLUMNS) or 1
    return [joined(steps[start : start + size]) for start in range(0, len(steps), size)], per_octave


def joined(steps: Sequence[LengthColumn]) -> LengthColumn:
    """Several steps as one column."""
    counts: dict[int, int] = {}
    for step in steps:
        for bin_number, count in step.counts.items():
            counts[bin_number] = counts.get(bin_number, 0) + count
    return LengthColumn(steps[0].first, steps[-1].last, counts, sum(step.tokens for step in steps))
