"""EARL's policy: by length and load, with memory, the cost of a switch, and hysteresis. Pure, deterministic.

    what may come ─► what fits it ─► the quickest of those, at the mean length ─► does going there pay?

- What does not fit the headroom (selector/headroom.py) is not chosen. Where nothing fits all of it, the bound
  is lowered to what something fits; where nothing fits at all, the layout with most memory is used.
- What is in use and no longer fits is left at once, for the quickest that does.
- Otherwise a switch must pay (selector/switch_threshold.py): what it would have saved in the steps for which
  it has been the better, and will in as many more, must exceed its cost, and 5 % of a step for noise; four
  times that for each time within 64 steps that the layout was left before.
"""

from __future__ import annotations

import math
from collections import deque

from earl.errors import ConfigError
from services.scheduler.selector import headroom
from services.scheduler.selector.candidate_scores import best, weigh, with_most_memory
from services.scheduler.selector.decision import Decision, LayoutCandidate, LayoutChoice, Outlook, Workload
from services.scheduler.selector.switch_threshold import Rung, RungVerdict, rungs


class EarlPolicy:
    """One stage's policy. switch_cost_s: as measured, in seconds. start: what the stage runs with already.

    Raises ConfigError if the cost is not a finite number >= 0.
    """

    name = "earl"

    def __init__(self, table: Outlook, switch_cost_s: float, start: LayoutChoice | None = None) -> None:
        _check(switch_cost_s)
        self._table = table
        self._cost_s = switch_cost_s
        self._now: LayoutChoice | None = None
        self._recent: deque[Workload] = deque(maxlen=headroom.WINDOW)
        self._rungs: list[Rung] = []
        if start is not None:
            self.settle(start)

    def decide(self, step: int, devices: int) -> Decision:
        """Raises ConfigError if the profile has nothing for so many devices."""
        if not self._recent:
            return self._begin(step, devices)
        corners, candidates = self._weighed(devices)
        by = {candidate.parallelism.replica: candidate for candidate in candidates}
        lead = best(candidates)
        verdict = RungVerdict(False, False, lead)
        for rung in self._rungs:
            verdict = rung.follow(step, by, lead)
            lead = by[rung.replica]
        before = self._now
        self._now = lead.parallelism
        last = self._recent[-1]
        longest, most = max(length for length, _ in corners), max(load for _, load in corners)
        return Decision(
            step=step,
            before=before,
            after=self._now,
            reason=_reason(verdict, by.get(before.replica) if before else None, lead),
            candidates=candidates,
            expected=Workload(last.mean_tokens, last.p95_tokens, longest, most),
            urgent=verdict.urgent,
            saving_s=verdict.saving_s,
            cost_s=self._cost_s,
            horizon_steps=verdict.steps,
        )

    def observe(self, workload: Workload) -> None:
        self._recent.append(workload)

    def settle(self, parallelism: LayoutChoice) -> None:
        """Sets the stage's actual layout: a switch failed and was rolled back, or somebody else made one."""
        self._now = parallelism
        self._rungs = [Rung(cost_s, parallelism.replica) for cost_s in rungs(self._cost_s)]

    def price(self, switch_cost_s: float) -> None:
        """Sets the measured cost of a switch. More expensive rungs end, new ones begin here."""
        _check(switch_cost_s)
        self._cost_s = switch_cost_s
        if self._now is None:
            return
        costs_s, here = rungs(switch_cost_s), self._now.replica
        kept = self._rungs[: len(costs_s)]
        if len(kept) < len(self._rungs) and kept[-1].replica != here:
            # The stage has the layout of the most expensive rung, which is this one now.
            kept[-1] = Rung(kept[-1].cost_s, here)
        self._rungs = [*kept, *(Rung(cost_s, here) for cost_s in costs_s[len(kept) :])]

    def _begin(self, step: int, devices: int) -> Decision:
        if self._now is not None and (now := self._now.over(devices)) is not None:
            return Decision(step, now, now, "stays: nothing was seen yet", cost_s=self._cost_s)
        chosen, candidates = with_most_memory(self._table, devices, headroom.GROWTH)
        before = self._now
        self._now = chosen
        self._rungs = [Rung(cost_s, chosen.replica, chosen=False) for cost_s in rungs(self._cost_s)]
        reason = "nothing was seen yet: the quickest of what fits all of the profile, or what fits most of it"
        text = f"begins with {chosen}: {reason}"
        return Decision(step, before, chosen, text, candidates, cost_s=self._cost_s)

    def _weighed(self, devices: int) -> tuple[tuple[headroom.Corner, ...], tuple[LayoutCandidate, ...]]:
        """The corners that have to fit, and the candidates weighed for them."""

        def fitting(layout: LayoutChoice) -> headroom.Fits:
            return lambda corner: self._table.predict(layout, *corner).fits

        choices = [fitting(layout) for layout in self._table.candidates(devices)]
        corners = headroom.corners(list(self._recent), choices)
        return corners, weigh(self._table, devices, self._recent[-1], corners)


def _check(switch_cost_s: float) -> None:
    if not math.isfinite(switch_cost_s) or switch_cost_s < 0:
        raise ConfigError(f"a switch cannot cost {switch_cost_s} s", "give seconds, 0 or more")


def _reason(verdict: RungVerdict, here: LayoutCandidate | None, chosen: LayoutCandidate) -> str:
    """The verdict in a sentence."""
    now = chosen.parallelism
    if not chosen.fits:
        verb = "goes to" if verdict.moves else "stays with"
        return f"{verb} {now}: nothing fits what is expected, and it has most free memory"
    if verdict.urgent:
        reason = here.reason if here is not None else "the devices cannot be split that way any more"
        return f"goes to {now} at once: {reason}"
    lead, paid = verdict.lead.parallelism, f"{verdict.saved_s:.3g} s"
    if verdict.moves:
        return (
            f"goes to {now}: {verdict.saving_s:.3g} s a step quicker, {paid} with the steps behind and as "
            f"many ahead ({verdict.steps}), more than the {verdict.threshold_s:.3g} s that a switch must save"
        )
    if verdict.steps:
        return (
            f"stays with {now}: {lead} would be {verdict.saving_s:.3g} s a step quicker, {paid} with the "
            f"steps behind and as many ahead ({verdict.steps}), less than the {verdict.threshold_s:.3g} s "
            "that a switch must save"
        )
    return f"stays with {now}: nothing that fits is quicker"
