"""For how long a trainer goes on asking where it cannot train what it is given.

Which worker is lost the scheduler knows once a member has been silent for as long as it may be, which is
longer in a larger fleet; until then the same sequences are planned again.
"""

from __future__ import annotations

from dataclasses import dataclass

# Plans in a row that come to nothing, at least, and for how many of a member's silences they do.
LEAST_PLANS = 20
SILENCES = 3.0


@dataclass(slots=True)
class RetryBudget:
    """plans: in a row that could not be trained; since_s: when the first of them could not."""

    plans: int = 0
    since_s: float = 0.0

    def trained(self) -> None:
        self.plans = 0

    def failed(self, now_s: float) -> None:
        if self.plans == 0:
            self.since_s = now_s
        self.plans += 1

    def has_ended(self, now_s: float, lost_after_s: float) -> bool:
        """lost_after_s: how long a worker may be without a heartbeat now before it counts as lost."""
        return self.plans >= LEAST_PLANS and now_s - self.since_s > SILENCES * lost_after_s
