"""Bounds how long a trainer keeps asking for batches while it cannot train what it is given.

The scheduler learns that a worker is lost once its heartbeats have been missing long enough, which is longer
in a larger fleet; until then it plans sequences whose columns are gone.
"""

from __future__ import annotations

from dataclasses import dataclass

# Plans in a row that cannot be trained, at least, and for how many times as long as a worker takes to be
# lost.
LEAST_PLANS = 20
LOSSES = 3.0


@dataclass(slots=True)
class RetryBudget:
    """Counts plans in a row that could not be trained.

    plans: so many so far; since_s: when the first of them could not be.
    """

    plans: int = 0
    since_s: float = 0.0

    def trained(self) -> None:
        self.plans = 0

    def failed(self, now_s: float) -> None:
        if self.plans == 0:
            self.since_s = now_s
        self.plans += 1

    def has_ended(self, now_s: float, lost_after_s: float) -> bool:
        """Returns whether to give up. lost_after_s: after so long without heartbeats a worker is lost."""
        return self.plans >= LEAST_PLANS and now_s - self.since_s > LOSSES * lost_after_s
