"""The counters of a gateway: refusals by reason, events by kind, waits in its queue, time in hosts. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from earl.obs.histogram import Histogram, doubling

# 1 ms to 36 h.
WAITS_S = doubling(0.001, 28)
# Environments that have histograms of their own; more are counted together.
MAX_ENVIRONMENTS = 64
OTHERS = "others"


class Counts:
    """refused: messages that broke the rules, by reason. totals: what happened, by kind. queue_waits:
    of sessions that found a host. resets, steps: seconds in hosts by environment."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.queue_waits = Histogram(WAITS_S)
        self.resets: dict[str, Histogram] = {}
        self.steps: dict[str, Histogram] = {}

    def answered(self, environment: str, seq: int, host_s: float) -> None:
        """A host answered a reset (seq 0) or a step after so long."""
        by_name = self.steps if seq else self.resets
        histogram = by_name.get(environment)
        if histogram is None:
            name = environment if len(by_name) < MAX_ENVIRONMENTS else OTHERS
            histogram = by_name.setdefault(name, Histogram())
        histogram.add(host_s)

    def fields(self) -> dict[str, Any]:
        """All counts as plain values."""
        waits = self.queue_waits
        return {
            "totals": dict(self.totals),
            "refused": dict(self.refused),
            "queue_wait_s": {
                "count": waits.count,
                "p50": waits.quantile(0.5),
                "p99": waits.quantile(0.99),
                "longest": waits.longest,
            },
        }
