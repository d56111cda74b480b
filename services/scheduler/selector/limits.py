"""A profile as a run bounds it: what failed is no candidate, nor what cannot hold a sequence. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from earl.parallelism import Parallelism, Replica
from services.scheduler.profile.corrected import CorrectedTable
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import MemoryModel, Prediction


class LimitedTable(CorrectedTable):
    """holds: the longest sequence in tokens that a parallelism's engines hold, None where nothing bounds it.
    longest: that a run can have at all.

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
    ) -> None:
        super().__init__(rows, stage, model)
        self._holds = holds
        self._longest = longest
        self._barred: Mapping[Replica, str] = {}
        # By replica, the shortest sequence that waited because its engines could not hold it.
        self._blocked: dict[Replica, float] = {}

    def bar(self, barred: Mapping[Replica, str]) -> None:
        """These are no candidates from now on, and why."""
        self._barred = barred

    def block(self, layout: Parallelism, context_tokens: float) -> None:
        """A sequence of so many tokens waited, because no engine cut so could hold it."""
        least = min(context_tokens, self._longest)
        self._blocked[layout.replica] = min(least, self._blocked.get(layout.replica, least))

    def held(self, layout: Parallelism, context_tokens: float) -> bool:
        """Whether its engines hold a sequence of so many tokens, as far as is known."""
        most = self._holds(layout)
        context_tokens = min(context_tokens, self._longest)
        return (most is None or context_tokens <= most) and context_tokens < self._blocked.get(
            layout.replica, float("inf")
        )

    def predict(self, layout: Parallelism, context_tokens: float, concurrency: float) -> Prediction:
        prediction = super().predict(layout, context_tokens, concurrency)
        if layout.replica in self._barred:
            # Without a throughput it is behind even where nothing fits.
            reason = self._barred[layout.replica]
            return replace(prediction, tokens_per_device_s=0.0, fits=False, reason=reason)
        if prediction.fits and not self.held(layout, context_tokens):
            reason = f"its engines do not hold a sequence of {min(context_tokens, self._longest):,.0f} tokens"
            return replace(prediction, fits=False, reason=reason)
        return prediction
