"""Weighs layouts for what the next step may need, by the steps before it. Pure.

Every policy that guards memory uses it, EARL's and its rivals in `earl bench selector` alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.scheduler.selector import headroom
from services.scheduler.selector.candidate_scores import weigh
from services.scheduler.selector.decision import LayoutCandidate, LayoutChoice, Outlook, Workload


class MemoryGuard:
    """The workloads of all steps, and what has to fit after them. last: that of the last; None before any."""

    def __init__(self, table: Outlook) -> None:
        self._table = table
        self._past = headroom.PastWorkloads()
        self.last: Workload | None = None

    def observe(self, workload: Workload) -> None:
        self._past.add(workload)
        self.last = workload

    def headroom(self, corners: Sequence[headroom.Corner]) -> str:
        """The headroom that these corners of `weigh` assume, in words."""
        return headroom.described(self._past, corners, self._table.bound)

    def weigh(
        self, devices: int, load: Workload
    ) -> tuple[tuple[headroom.Corner, ...], tuple[LayoutCandidate, ...]]:
        """The corners that have to fit, and the candidates: throughput judged at `load`.

        Only after a step was observed. Raises ConfigError if no layout has so many devices.
        """

        def fitting(layout: LayoutChoice) -> headroom.Fits:
            return lambda corner: self._table.uncorrected(layout, *corner).fits

        choices = [fitting(layout) for layout in self._table.candidates(devices)]
        corners = headroom.corners(self._past, choices, self._table.bound)
        return corners, weigh(self._table, devices, load, corners)
