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
        holds: Callable[[Parallelism], float | None] = lambda one: None,
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

    def block(self, one: Parallelism, context_tokens: float) -> None:
        """A sequence of so many tokens waited, because no engine cut so could hold it."""
        least = min(context_tokens, self._longest)
        self._blocked[one.replica] = min(least, self._blocked.get(one.replica, least))

    def held(self, one: Parallelism, context_tokens: float) -> bool:
        """Whether its engines hold a sequence of so many tokens, as far as is known."""
        most = self._holds(one)
        context_tokens = min(context_tokens, self._longest)
        return (most is None or context_tokens <= most) and context_tokens < self._blocked.get(
            one.replica, float("inf")
        )

    def predict(self, one: Parallelism, context_tokens: float, concurrency: float) -> Prediction:
        found = super().predict(one, context_tokens, concurrency)
        if one.replica in self._barred:
            # Without a throughput it is behind even where nothing fits.
            why = self._barred[one.replica]
            return replace(found, tokens_per_device_s=0.0, fits=False, why=why)
        if found.fits and not self.held(one, context_tokens):
            why = f"its engines do not hold a sequence of {min(context_tokens, self._longest):,.0f} tokens"
            return replace(found, fits=False, why=why)
        return found
