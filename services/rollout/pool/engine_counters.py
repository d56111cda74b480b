"""Counts of a pool's engines, added up over their answers, their restarts and their switches."""

from __future__ import annotations

from services.rollout.engines.contract.draft_counts import DraftCounts
from services.rollout.engines.contract.engine import GENERATES, EngineStats


class EngineCounters:
    """Adds up what engines report once: whoever asks one for its stats gives the answer to `add`.

    paced_steps: on paced devices; late_steps: those of them over pace. busy_device_s: device-seconds that
    engines have generated for; None before any of them told.
    """

    def __init__(self) -> None:
        self.paced_steps = self.late_steps = 0
        self.drafts = DraftCounts()
        self.busy_device_s: float | None = None
        self._busy: dict[str, list[tuple[int, int]]] = {}

    def add(self, stats: EngineStats) -> EngineStats:
        """Adds an engine's answer, and returns it."""
        self.paced_steps += stats.paced_steps
        self.late_steps += stats.late_steps
        self.drafts.include(stats.drafts)
        for period in stats.busy:
            self._busy.setdefault(period.what, []).append((period.start_ns, period.end_ns))
            if period.what == GENERATES:
                device_s = stats.tp * (period.end_ns - period.start_ns) / 1e9
                self.busy_device_s = (self.busy_device_s or 0.0) + device_s
        return stats

    def take_busy(self) -> dict[str, list[tuple[int, int]]]:
        """Returns the periods since the last call, by what engines did, in Unix nanoseconds."""
        busy, self._busy = self._busy, {}
        return busy
