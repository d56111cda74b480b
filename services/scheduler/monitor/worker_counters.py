"""Sums of what workers count, over all of them, so far and since the last step. Pure.

heartbeat ─► what a worker has counted more ─► totals of the run
                                            └─► sums of the step, taken at each commit
"""

from __future__ import annotations

from collections.abc import Mapping

from earl.draft_figures import COUNTED as OF_DRAFTS

# Gauges that only grow, from 0 when their worker begins: steps on paced devices, those over pace, drafts.
COUNTED = ("paced_steps", "late_steps", *OF_DRAFTS)


class WorkerCounters:
    """Adds up the counters of all workers, also of those that left. totals: by name, without what nobody
    counts."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self._step: dict[str, float] = {}
        # By worker, its incarnation and what that last reported. Of those that left it stays: some come back,
        # and count further.
        self._reported: dict[str, tuple[int, dict[str, float]]] = {}

    def reported(self, worker: str, incarnation: int, gauges: Mapping[str, float]) -> None:
        """Records the gauges of a worker's heartbeat.

        Another incarnation of a worker counts from 0. Of a worker that is new here what it had counted before
        is part of the totals, and of no step.
        """
        is_new = worker not in self._reported
        before, known = self._reported.get(worker, (incarnation, {}))
        if before != incarnation:
            known = {}
        self._reported[worker] = incarnation, known
        counted = {name: gauges[name] for name in COUNTED if name in gauges}
        for name, value in counted.items():
            more = value - known.get(name, 0.0)
            self.totals[name] = self.totals.get(name, 0.0) + more
            if not is_new:
                self._step[name] = self._step.get(name, 0.0) + more
            known[name] = value

    def take(self) -> dict[str, float]:
        """Returns what was counted since the last call, by name."""
        taken, self._step = self._step, {}
        return taken
