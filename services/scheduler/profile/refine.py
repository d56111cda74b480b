"""Corrects a profile's predictions by what the run observes. Pure.

    factor(parallelism, L, C) = exp(mean of log(observed / predicted) nearby), within [1 / BOUND, BOUND]

A step's true throughput differs from the profile's for reasons that all parallelisms share (environments that
are waited for, prompts that are read and not generated) and for reasons of their own. What was observed of
some therefore corrects the others too, until they have observations of their own: else the one in use
would be judged by what happens, and the rest by what was hoped for.

    own     of a parallelism: mean over its observations nearby, those that came last counting most
    shared  mean of the own ones of all parallelisms nearby, drawn to 1 (nothing to correct)
    factor  own, drawn to shared

Near is meant in octaves of length and of a replica's concurrency. An observation counts for no more than STEP
times the factor that holds where it was made, so that one noisy step cannot turn a comparison around; what
stays so is followed within some steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from earl.parallelism import Parallelism

# By how much a profile can be wrong in all, and how much one observation can correct it.
BOUND, STEP = 8.0, 2.0
# How many observations it takes to outweigh what is believed without any.
PRIOR = 1.0
# Each observation of a place makes the earlier ones there count so much less.
FADING = 0.9
# Octaves within which observations are kept as one, and within which they inform each other.
CELL_OCTAVES, REACH_OCTAVES = 0.5, 1.0

_LOG_BOUND, _LOG_STEP = math.log(BOUND), math.log(STEP)


@dataclass(slots=True)
class _Cell:
    """Observations of one place: where (octaves), how many they count for, and their mean log ratio."""

    context: float
    concurrency: float
    weight: float = 0.0
    log_ratio: float = 0.0


class Refinement:
    """Ratios of observed to predicted throughput, by parallelism and neighbourhood."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int, int], dict[tuple[int, int], _Cell]] = {}

    def observe(
        self,
        parallelism: Parallelism,
        context_tokens: float,
        concurrency: float,
        predicted: float,
        observed: float,
    ) -> None:
        """A step of mean length context_tokens did `observed` tokens per device and second where the profile,
        without this correction, is `predicted`. What is not above 0 is ignored."""
        figures = (predicted, observed, context_tokens, concurrency)
        if not all(math.isfinite(figure) and figure > 0 for figure in figures):
            return
        believed = math.log(self.factor(parallelism, context_tokens, concurrency))
        ratio = _within(math.log(observed / predicted), believed - _LOG_STEP, believed + _LOG_STEP)
        context, sequences = math.log2(context_tokens), math.log2(concurrency / parallelism.dp)
        place = (round(context / CELL_OCTAVES), round(sequences / CELL_OCTAVES))
        cells = self._cells.setdefault(parallelism.replica, {})
        cell = cells.setdefault(place, _Cell(place[0] * CELL_OCTAVES, place[1] * CELL_OCTAVES))
        before = cell.weight * FADING
        cell.log_ratio = (cell.log_ratio * before + ratio) / (before + 1.0)
        cell.weight = before + 1.0

    def factor(self, parallelism: Parallelism, context_tokens: float, concurrency: float) -> float:
        """Returns the factor for the profile's throughput; 1 where nothing near was observed."""
        place = math.log2(max(context_tokens, 1.0)), math.log2(max(concurrency / parallelism.dp, 1e-9))
        near = {replica: _near(cells.values(), place) for replica, cells in sorted(self._cells.items())}
        weight = sum(count for count, _ in near.values())
        if not weight:
            return 1.0
        shared = sum(count * ratio for count, ratio in near.values()) / (weight + PRIOR)
        count, ratio = near.get(parallelism.replica, (0.0, 0.0))
        log_factor = (count * ratio + PRIOR * shared) / (count + PRIOR)
        return math.exp(_within(log_factor, -_LOG_BOUND, _LOG_BOUND))


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _near(cells: Iterable[_Cell], place: tuple[float, float]) -> tuple[float, float]:
    """(how many observations they count for there, their mean log ratio)."""
    weight = total = 0.0
    for cell in cells:
        distance = math.hypot(cell.context - place[0], cell.concurrency - place[1]) / REACH_OCTAVES
        share = cell.weight * math.exp(-0.5 * distance * distance)
        weight += share
        total += share * cell.log_ratio
    return weight, total / weight if weight else 0.0
