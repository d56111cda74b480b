"""The threshold of a switch: what staying has cost, against what going costs. Pure.

    here is slower ─► seconds lost in the steps in a row for which it has been so ─► more than a switch costs?

This is the rule for renting or buying of which the end is not known: it loses at most about twice what a
policy loses that knows it. An order of two layouts that has lasted n steps is expected to last n more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from earl.parallelism import Replica
from services.scheduler.selector.decision import LayoutCandidate

# What must be lost above the cost of a switch, as a fraction of a step: by so much a profile may be wrong.
ERROR = 0.10


@dataclass(frozen=True, slots=True)
class SwitchVerdict:
    """The decision to stay or to go to the best layout.

    urgent: the present layout no longer fits. steps: for how many in a row the best has been the better, the
    coming one included. saving_s: of the coming step. lost_s: in those steps by staying; threshold_s: what
    that must exceed.
    """

    moves: bool
    urgent: bool = False
    steps: int = 0
    saving_s: float = 0.0
    lost_s: float = 0.0
    threshold_s: float = 0.0


@dataclass(slots=True)
class SwitchThreshold:
    """Counts what one layout has lost. A switch, whoever makes it, begins a new one."""

    # By replica: for how many steps in a row it has been better than the present layout, and what those lost.
    _better: dict[Replica, tuple[int, float]] = field(default_factory=dict)

    def weigh(
        self,
        here: LayoutCandidate | None,
        candidates: Mapping[Replica, LayoutCandidate],
        best: Replica,
        cost_s: float,
    ) -> SwitchVerdict:
        """Once a step. here: the present layout; None if the devices cannot be split that way any more.

        candidates: by replica, as weighed for the coming step; best: of those.
        """
        if here is None:
            return SwitchVerdict(True, urgent=True)
        better: dict[Replica, tuple[int, float]] = {}
        for replica, candidate in candidates.items():
            if candidate.fits and candidate.step_s < here.step_s:
                steps, lost_s = self._better.get(replica, (0, 0.0))
                better[replica] = steps + 1, lost_s + here.step_s - candidate.step_s
        self._better = better
        if here.parallelism.replica == best:
            return SwitchVerdict(False)
        if not here.fits:
            return SwitchVerdict(True, urgent=True)
        if best not in better:
            return SwitchVerdict(False)
        steps, lost_s = better[best]
        threshold_s = cost_s + ERROR * here.step_s
        saving_s = here.step_s - candidates[best].step_s
        return SwitchVerdict(lost_s > threshold_s, False, steps, saving_s, lost_s, threshold_s)
