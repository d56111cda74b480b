"""A stage's profile as the run corrects it: what it predicts, times what was observed beside it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from earl.parallelism import Parallelism
from services.scheduler.profile.refine import Refinement
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import MemoryModel, Prediction, ProfileTable


class CorrectedTable(ProfileTable):
    """Throughput is corrected; what fits is the profile's to say, or the memory model's.

    Raises ConfigError if there are no rows.
    """

    def __init__(self, rows: Iterable[ProfileRow], stage: str, model: MemoryModel | None = None) -> None:
        super().__init__(rows, stage, model)
        self._refinement = Refinement()
        self._factors: dict[tuple[Parallelism, float, float], float] = {}

    def observe(
        self, parallelism: Parallelism, context_tokens: float, concurrency: float, tokens_per_device_s: float
    ) -> None:
        """A step of this mean length did so much; of what the profile does not know, nothing is learned."""
        if parallelism.replica not in {layout.replica for layout in self.parallelisms}:
            return
        predicted = super().predict(parallelism, context_tokens, concurrency).tokens_per_device_s
        self._refinement.observe(parallelism, context_tokens, concurrency, predicted, tokens_per_device_s)
        self._factors.clear()

    def correction(self, parallelism: Parallelism, context_tokens: float, concurrency: float) -> float:
        """What the profile's throughput there is multiplied by; 1 where nothing near was observed."""
        place = parallelism, context_tokens, concurrency
        if place not in self._factors:
            self._factors[place] = self._refinement.factor(*place)
        return self._factors[place]

    def predict(self, layout: Parallelism, context_tokens: float, concurrency: float) -> Prediction:
        """As the profile's, its throughput corrected."""
        prediction = super().predict(layout, context_tokens, concurrency)
        factor = self.correction(layout, context_tokens, concurrency)
        return replace(prediction, tokens_per_device_s=prediction.tokens_per_device_s * factor)
