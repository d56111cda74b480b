"""Weighs layouts for what the next step may need, by the steps before it. Pure.

Every policy that guards memory uses it, EARL's and its rivals in `earl bench selector` alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from earl.errors import ConfigError
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
        corners = self._corners(self._table.candidates(devices), math.inf)
        return corners, weigh(self._table, devices, load, corners)

    def weigh_each(
        self, counts: Sequence[int], load: Workload, slots: float
    ) -> Mapping[int, tuple[LayoutCandidate, ...]]:
        """The candidates on each of several numbers of devices; without those that no layout has.

        The same corners have to fit on all of them, as far out as any of all layouts fits them. slots:
        sequences that a device works on at once; others wait. Only after a step was observed.
        """
        layouts: dict[int, Sequence[LayoutChoice]] = {}
        for count in counts:
            with suppress(ConfigError):
                layouts[count] = self._table.candidates(count)
        # More of the same replicas share the load: what fits with fewer of them fits with more.
        most = {layout.replica: layout for count in sorted(layouts) for layout in layouts[count]}
        corners = self._corners(list(most.values()), slots)
        weighed: dict[int, tuple[LayoutCandidate, ...]] = {}
        for count in layouts:
            held = replace(load, concurrency=min(load.concurrency, slots * count))
            within = [(length, min(sequences, slots * count)) for length, sequences in corners]
            weighed[count] = weigh(self._table, count, held, within)
        return weighed

    def _corners(self, layouts: Sequence[LayoutChoice], slots: float) -> tuple[headroom.Corner, ...]:
        def fitting(layout: LayoutChoice) -> headroom.Fits:
            def fits(corner: headroom.Corner) -> bool:
                sequences = min(corner[1], slots * layout.devices)
                return self._table.uncorrected(layout, corner[0], sequences).fits

            return fits

        return headroom.corners(self._past, list(map(fitting, layouts)), self._table.bound)
