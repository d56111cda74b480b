"""A profile as a run corrects and bounds it. Pure.

Its predictions are multiplied by observed corrections; what failed is no candidate, nor what cannot
hold a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from dataclasses import replace

from earl.errors import ConfigError
from earl.parallelism import Parallelism, Replica
from services.scheduler.profile.refine import Refinement
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import MemoryModel, Prediction, ProfileTable


class LimitedTable(ProfileTable):
    """A profile whose throughput is corrected; what fits is decided by the profile or the memory model,
    within bounds.

    holds: the longest sequence in tokens that a parallelism's engines hold, None where nothing bounds it.
    longest: that a run can have at all. most: sequences that a run can have at once. fits: whether a layout's
    devices hold a length at a concurrency of the pool, where they are simulated and their memory is that of a
    table; None: they do. legal: the replicas that so many devices can have; None: all that divide them.

    Raises ConfigError if there are no rows.
    """

    def __init__(
        self,
        rows: Iterable[ProfileRow],
        stage: str,
        model: MemoryModel | None = None,
        *,
        holds: Callable[[Parallelism], float | None] = lambda layout: None,
        longest: float = float("inf"),
        fits: Callable[[Parallelism, float, float], bool] | None = None,
        most: float = float("inf"),
        legal: Callable[[int], Collection[Replica]] | None = None,
    ) -> None:
        super().__init__(rows, stage, model, bound=(longest, most))
        self._refinement = Refinement()
        self._factors: dict[tuple[Parallelism, float, float], float] = {}
        self._holds = holds
        self._longest = longest
        self._legal = legal
        self._fits = fits or (lambda layout, context_tokens, concurrency: True)
        self._barred: Mapping[Replica, str] = {}
        # By replica, the shortest sequence that waited because its engines could not hold it.
        self._blocked: dict[Replica, float] = {}

    def candidates(self, devices: int) -> tuple[Parallelism, ...]:
        """Layouts of so many devices that a run can have. Raises ConfigError if nothing can."""
        layouts = super().candidates(devices)
        if self._legal is None:
            return layouts
        legal = self._legal(devices)
        possible = tuple(layout for layout in layouts if layout.replica in legal)
        if not possible:
            raise ConfigError(
                f"{self.stage} can have none of the profile's layouts on {devices} devices",
                "profile others, or give another number of devices",
            )
        return possible

    def unlearned(self) -> LimitedTable:
        """The same profile and bounds before anything was observed, barred or blocked."""
        table = copy(self)
        table._refinement, table._factors, table._barred, table._blocked = Refinement(), {}, {}, {}
        return table

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
        """Returns the factor for the profile's throughput there; 1 where nothing near was observed."""
        place = parallelism, context_tokens, concurrency
        if place not in self._factors:
            self._factors[place] = self._refinement.factor(*place)
        return self._factors[place]

    def bar(self, barred: Mapping[Replica, str]) -> None:
        """Removes candidates from now on, each with its reason."""
        self._barred = barred

    def block(self, layout: Parallelism, context_tokens: float) -> None:
        """A sequence of so many tokens waited, because no engine of that layout could hold it."""
        least = min(context_tokens, self._longest)
        self._blocked[layout.replica] = min(least, self._blocked.get(layout.replica, least))

    def held(self, layout: Parallelism, context_tokens: float) -> bool:
        """Returns whether a layout's engines hold a sequence of so many tokens, as far as is known."""
        most = self._holds(layout)
        context_tokens = min(context_tokens, self._longest)
        return (most is None or context_tokens <= most) and context_tokens < self._blocked.get(
            layout.replica, float("inf")
        )

    def predict(self, layout: Parallelism, context_tokens: float, concurrency: float) -> Prediction:
        """The profile's prediction with its throughput corrected and bounded."""
        prediction = self.uncorrected(layout, context_tokens, concurrency)
        factor = self.correction(layout, context_tokens, concurrency)
        return replace(prediction, tokens_per_device_s=prediction.tokens_per_device_s * factor)

    def uncorrected(self, layout: Parallelism, context_tokens: float, concurrency: float) -> Prediction:
        """The profile's prediction, bounded."""
        prediction = super().predict(layout, context_tokens, concurrency)
        if layout.replica in self._barred:
            # Without a throughput it is behind even where nothing fits.
            reason = self._barred[layout.replica]
            return replace(prediction, tokens_per_device_s=0.0, fits=False, reason=reason)
        if prediction.fits and not self.held(layout, context_tokens):
            tokens = min(context_tokens, self._longest)
            reason = f"no replica of {layout} holds a sequence of {tokens:,.0f} tokens"
            return replace(prediction, fits=False, reason=reason)
        if prediction.fits and not self._fits(layout, context_tokens, concurrency):
            reason = f"out of memory at {context_tokens:,.0f} tokens x {concurrency:g} sequences, by its pace"
            return replace(prediction, fits=False, reason=reason)
        return prediction
