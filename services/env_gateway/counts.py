"""What a gateway counts: refusals by reason, events by kind, waits in its queue; pure."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

# Upper bounds of the buckets of waits: 1 ms, and each next one twice as long, up to 36 h; the last one
# takes the rest.
FIRST_BOUND_S = 0.001
BUCKETS = 28


class Waits:
    """A histogram of seconds; quantiles are the upper bound of their bucket, at most twice too long."""

    def __init__(self) -> None:
        self.count = 0
        self.longest_s = 0.0
        self._buckets = [0] * BUCKETS

    def add(self, seconds: float) -> None:
        doublings = math.ceil(math.log2(seconds / FIRST_BOUND_S)) if seconds > FIRST_BOUND_S else 0
        self._buckets[min(doublings, BUCKETS - 1)] += 1
        self.count += 1
        self.longest_s = max(self.longest_s, seconds)

    def quantile(self, share: float) -> float:
        """The wait that `share` of all are not longer than, in seconds; 0 without any."""
        wanted, seen = share * self.count, 0
        for doublings, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                return min(FIRST_BOUND_S * 2**doublings, self.longest_s)
        return 0.0


class Counts:
    """refused: messages that broke the rules, by reason. totals: what happened, by kind. queue_waits:
    of sessions that found a host."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.queue_waits = Waits()

    def fields(self) -> dict[str, Any]:
        """All of it as plain values."""
        waits = self.queue_waits
        return {
            "totals": dict(self.totals),
            "refused": dict(self.refused),
            "queue_wait_s": {
                "count": waits.count,
                "p50": waits.quantile(0.5),
                "p99": waits.quantile(0.99),
                "longest": waits.longest_s,
            },
        }
