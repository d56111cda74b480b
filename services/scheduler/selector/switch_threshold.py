"""The threshold of a switch: a ladder of ever more expensive switches, each rung following the lower. Pure.

    best that fits ◄── rung 0: a switch is free ◄── rung 1: a millisecond ◄── ... ◄── rung n: what it costs

A rung keeps its layout, or takes that of the rung below. So it differs from that one only by having made
fewer switches, and has never made more: a more expensive switch never makes more of them, whatever the trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from earl.parallelism import Replica
from services.scheduler.selector.decision import LayoutCandidate

# Costs of a switch, in seconds: 0, then in ratios of RATIO from CHEAPEST_S on. A cost counts as the nearest.
CHEAPEST_S = 2.0**-10
RATIO = math.sqrt(2.0)
# Some thirty years: what costs more counts as that.
DEAREST_S = 2.0**30
# What must be saved above the cost of a switch, as a fraction of a step: that much is noise.
NOISE = 0.05
# For so many steps it is remembered that a parallelism was left; each time, a return must save RETURN times
# as much.
MEMORY = 64
RETURN = 4


def rungs(cost_s: float) -> list[float]:
    """Costs of the ladder up to the one that is nearest to `cost_s`, which must be finite and >= 0."""
    if cost_s < CHEAPEST_S / 2:
        return [0.0]
    steps = max(0, round(math.log(min(cost_s, DEAREST_S) / CHEAPEST_S) / math.log(RATIO)))
    return [0.0, *(CHEAPEST_S * RATIO**power for power in range(steps + 1))]


@dataclass(frozen=True, slots=True)
class RungVerdict:
    """A rung's decision in one step.

    urgent: its layout no longer fits. lead: the layout of the rung below.
    steps: for how many in a row the lead has been the better. saving_s: of a step.
    saved_s: what those steps would have saved, and as many more will. threshold_s: what that must exceed.
    """

    moves: bool
    urgent: bool
    lead: LayoutCandidate
    steps: int = 0
    saving_s: float = 0.0
    saved_s: float = 0.0
    threshold_s: float = 0.0


@dataclass(slots=True)
class Rung:
    """The path of one switch cost. replica: its present layout.

    chosen: for what was seen; a beginning is not, and leaving it is nothing to remember.
    """

    cost_s: float
    replica: Replica
    chosen: bool = True
    # By replica: for how many steps in a row it has been better than this rung's layout, and what those
    # would have saved.
    _better: dict[Replica, tuple[int, float]] = field(default_factory=dict)
    _left: dict[Replica, list[int]] = field(default_factory=dict)

    def follow(
        self, step: int, candidates: Mapping[Replica, LayoutCandidate], lead: LayoutCandidate
    ) -> RungVerdict:
        """Stays, or goes where `lead` is. candidates: by replica, as weighed for this step."""
        here, to = candidates.get(self.replica), lead.parallelism.replica
        if here is not None:
            self._compare(here, candidates)
        if self.replica == to:
            return RungVerdict(False, False, lead)
        if here is None or not here.fits:
            self._go(step, to)
            return RungVerdict(True, True, lead)
        if to not in self._better:
            return RungVerdict(False, False, lead)
        steps, saved_s = self._better[to]
        saving_s = here.step_s - lead.step_s
        # As long again as it has been so, the coming step counted as behind.
        expected_s = saved_s + steps * saving_s
        returns = sum(step - left <= MEMORY for left in self._left.get(to, ()))
        threshold_s = (self.cost_s + NOISE * here.step_s) * RETURN**returns
        verdict = RungVerdict(expected_s > threshold_s, False, lead, steps, saving_s, expected_s, threshold_s)
        if verdict.moves:
            self._go(step, to)
        return verdict

    def _compare(self, here: LayoutCandidate, candidates: Mapping[Replica, LayoutCandidate]) -> None:
        better = {}
        for replica, candidate in candidates.items():
            if candidate.fits and candidate.step_s < here.step_s:
                steps, saved_s = self._better.get(replica, (0, 0.0))
                better[replica] = steps + 1, saved_s + here.step_s - candidate.step_s
        self._better = better

    def _go(self, step: int, to: Replica) -> None:
        if self.chosen:
            left = [left_step for left_step in self._left.get(self.replica, ()) if step - left_step <= MEMORY]
            self._left[self.replica] = [*left, step]
        self.replica, self.chosen, self._better = to, True, {}
