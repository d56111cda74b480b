"""Stages that share devices, decided together: they take turns, and each keeps its memory. Pure.

A choice is a parallelism for each stage. A token costs the seconds of all stages; memory is the sum; it fits
if each stage fits and the sum does. To a policy it looks like one stage's profile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from earl.errors import ConfigError
from earl.parallelism import Parallelism, Replica
from services.scheduler.profile.table import Prediction, ProfileTable

# Three stages with eight parallelisms each.
MOST_CHOICES = 512


@dataclass(frozen=True, slots=True, order=True)
class Shared:
    """A parallelism for each of the stages, in their order; all over the same devices."""

    stages: tuple[str, ...]
    parallelisms: tuple[Parallelism, ...]

    @property
    def replica(self) -> Replica:
        return tuple(degree for parallelism in self.parallelisms for degree in parallelism.replica)

    @property
    def devices(self) -> int:
        return self.parallelisms[0].devices

    def over(self, devices: int) -> Shared | None:
        """The same replicas over so many devices; None if one stage's do not divide them."""
        changed = [parallelism.over(devices) for parallelism in self.parallelisms]
        fitting = tuple(parallelism for parallelism in changed if parallelism is not None)
        return Shared(self.stages, fitting) if len(fitting) == len(changed) else None

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {stage: parallelism.as_dict() for stage, parallelism in self._each()}

    def __str__(self) -> str:
        return " + ".join(f"{stage} {parallelism}" for stage, parallelism in self._each())

    def _each(self) -> Iterable[tuple[str, Parallelism]]:
        return zip(self.stages, self.parallelisms, strict=True)


class SharedTable:
    """The predictions of several stages' profiles for all stages at once. Raises ConfigError for fewer than
    two.
    """

    def __init__(self, tables: Sequence[ProfileTable]) -> None:
        if len(tables) < 2:
            raise ConfigError("devices are shared by two stages at least", "give more than one stage")
        self._tables = tuple(tables)
        self._stages = tuple(table.stage for table in tables)
        self.points = sorted({point for table in tables for point in table.points})
        self.extent = max(table.extent[0] for table in tables), max(table.extent[1] for table in tables)
        self.bound = max(table.bound[0] for table in tables), max(table.bound[1] for table in tables)
        self._predicted = lru_cache(maxsize=1 << 16)(self._predict)

    def candidates(self, devices: int) -> tuple[Shared, ...]:
        """Layouts of so many devices. Raises ConfigError if a stage cannot, or for too many."""
        each = [table.candidates(devices) for table in self._tables]
        if math.prod(map(len, each)) > MOST_CHOICES:
            raise ConfigError(
                f"stages {', '.join(self._stages)} have {math.prod(map(len, each))} parallelisms together",
                f"profile fewer of them: at most {MOST_CHOICES}",
            )
        return tuple(Shared(self._stages, choice) for choice in product(*each))

    def predict(self, layout: Shared, context_tokens: float, concurrency: float) -> Prediction:
        """Predicts as ProfileTable.predict does, for all stages together."""
        return self._predicted(layout, context_tokens, concurrency)

    def uncorrected(self, layout: Shared, context_tokens: float, concurrency: float) -> Prediction:
        """Predicts as `predict` does: no run corrects it."""
        return self._predicted(layout, context_tokens, concurrency)

    def _predict(self, layout: Shared, context_tokens: float, concurrency: float) -> Prediction:
        pairs = zip(self._tables, layout.parallelisms, strict=True)
        predictions = [table.predict(each, context_tokens, concurrency) for table, each in pairs]
        rates = [each.tokens_per_device_s for each in predictions]
        rate = 1 / sum(1 / rate for rate in rates) if all(rates) else 0.0
        fractions = [each.memory_fraction for each in predictions if each.memory_fraction is not None]
        fraction = sum(fractions) if fractions else None
        beyond = any(each.source == "extrapolated" for each in predictions)
        source = "extrapolated" if beyond else "interpolated"
        for stage, each in zip(self._stages, predictions, strict=True):
            if not each.fits:
                return Prediction(rate, fraction, False, each.source, f"{stage}: {each.reason}")
        fits = fraction is None or fraction <= 1.0
        stages = " and ".join(self._stages)
        reason = "" if fits else f"{fraction:.0%} of a device's memory predicted for {stages}"
        return Prediction(rate, fraction, fits, source, reason)
