"""Counts of a pool's engines, added up over their answers, their restarts and their switches."""

from __future__ import annotations

from services.rollout.engines.contract.draft_counts import DraftCounts
from services.rollout.engines.contract.engine import GENERATES, EngineStats


class EngineCounters:
    """Adds up what engines report once: whoever asks one for its stats gives the answer to `add`.

    Beside what all engines did, each of several has an activity of its own, "engine 0" and so on: in the
    bubble, one is idle while another generates.

    paced_steps: on paced devices; late_steps: those of them over pace. busy_device_s: device-seconds that
    engines have generated for; None before any of them told.
    """

    def __init__(self) -> None:
        self.paced_steps = self.late_steps = 0
        self.drafts = DraftCounts()
        self.busy_device_s: float | None = None
        self._busy: dict[str, list[tuple[int, int]]] = {}
        # By number of the engine, when it generated.
        self._generated: dict[int, list[tuple[int, int]]] = {}

    def add(self, stats: EngineStats, number: int) -> EngineStats:
        """Adds the answer of the engine of that number among those of its parallelism, and returns it."""
        self.paced_steps += stats.paced_steps
        self.late_steps += stats.late_steps
        self.drafts.include(stats.drafts)
        for period in stats.busy:
            self._busy.setdefault(period.what, []).append((period.start_ns, period.end_ns))
            if period.what == GENERATES:
                self._generated.setdefault(number, []).append((period.start_ns, period.end_ns))
                device_s = stats.tp * (period.end_ns - period.start_ns) / 1e9
                self.busy_device_s = (self.busy_device_s or 0.0) + device_s
        return stats

    def take_busy(self) -> dict[str, list[tuple[int, int]]]:
        """Returns the periods since the last call, by what engines did, in Unix nanoseconds."""
        busy, self._busy = self._busy, {}
        generated, self._generated = self._generated, {number: [] for number in self._generated}
        if len(generated) > 1:
            busy |= {f"engine {number}": periods for number, periods in generated.items() if periods}
        return busy
