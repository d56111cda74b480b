"""EARL's policy: by length and load, with memory, and the cost of a switch. Pure, deterministic.

    what may come ─► what fits it ─► the quickest of those, at the mean length ─► does going there pay?

- What does not fit the headroom (selector/headroom.py) is not chosen. Where nothing fits all of it, the bound
  is lowered to what something fits; where nothing fits at all, the layout with most memory is used.
- What is in use and no longer fits is left at once, for the quickest that does.
- Otherwise a switch must pay (selector/switch_threshold.py): what staying has cost, in the steps in a row for
  which the other layout has been the better, must exceed the cost of a switch, and 10 % of a step for the
  error of the profile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from earl.errors import ConfigError
from services.scheduler.selector import headroom
from services.scheduler.selector.candidate_scores import best, with_most_memory
from services.scheduler.selector.decision import Decision, LayoutCandidate, LayoutChoice, Outlook, Workload
from services.scheduler.selector.memory_guard import MemoryGuard
from services.scheduler.selector.switch_threshold import SwitchThreshold, SwitchVerdict


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
        self._guard = MemoryGuard(table)
        self._threshold = SwitchThreshold()
        if start is not None:
            self.settle(start)

    def decide(self, step: int, devices: int) -> Decision:
        """Raises ConfigError if the profile has nothing for so many devices."""
        last = self._guard.last
        if last is None:
            return self._begin(step, devices)
        corners, candidates = self._guard.weigh(devices, last)
        by = {candidate.parallelism.replica: candidate for candidate in candidates}
        lead, before = best(candidates), self._now
        here = by.get(before.replica) if before is not None else None
        verdict = self._threshold.weigh(here, by, lead.parallelism.replica, self._cost_s)
        if verdict.moves:
            self._threshold = SwitchThreshold()
        chosen = lead if verdict.moves or here is None else here
        self._now = chosen.parallelism
        assumed = self._guard.headroom(corners)
        longest, most = max(length for length, _ in corners), max(load for _, load in corners)
        return Decision(
            step=step,
            before=before,
            after=self._now,
            reason=_reason(verdict, here, lead, chosen, assumed),
            candidates=candidates,
            headroom=assumed,
            expected=Workload(last.mean_tokens, last.p95_tokens, longest, most),
            urgent=verdict.urgent,
            saving_s=verdict.saving_s,
            cost_s=self._cost_s,
            horizon_steps=verdict.steps,
        )

    def observe(self, workload: Workload) -> None:
        self._guard.observe(workload)

    def weigh_each(self, counts: Sequence[int], slots: float) -> Mapping[int, Sequence[LayoutCandidate]]:
        """The layouts on each of several numbers of devices, weighed as `decide` does, for the same headroom
        on all of them; none before anything was observed. slots: as in MemoryGuard.weigh_each."""
        last = self._guard.last
        return {} if last is None else self._guard.weigh_each(counts, last, slots)

    def settle(self, parallelism: LayoutChoice) -> None:
        """Sets the stage's actual layout: a switch failed and was rolled back, or somebody else made one."""
        self._now = parallelism
        self._threshold = SwitchThreshold()

    def price(self, switch_cost_s: float) -> None:
        """Sets the measured cost of a switch."""
        _check(switch_cost_s)
        self._cost_s = switch_cost_s

    def _begin(self, step: int, devices: int) -> Decision:
        if self._now is not None and (now := self._now.over(devices)) is not None:
            return Decision(step, now, now, "stays: nothing was seen yet", cost_s=self._cost_s)
        chosen, candidates = with_most_memory(self._table, devices, headroom.GROWTH)
        before = self._now
        self._now = chosen
        self._threshold = SwitchThreshold()
        reason = "nothing was seen yet: the quickest of what fits all of the profile, or what fits most of it"
        text = f"begins with {chosen}: {reason}"
        return Decision(step, before, chosen, text, candidates, cost_s=self._cost_s)


def _check(switch_cost_s: float) -> None:
    if not math.isfinite(switch_cost_s) or switch_cost_s < 0:
        raise ConfigError(f"a switch cannot cost {switch_cost_s} s", "give seconds, 0 or more")


def _reason(
    verdict: SwitchVerdict,
    here: LayoutCandidate | None,
    lead: LayoutCandidate,
    chosen: LayoutCandidate,
    assumed: str,
) -> str:
    """The verdict in a sentence.

    here: the layout in use; lead: the best; chosen: one of them. assumed: the headroom in words.
    """
    now = chosen.parallelism
    if not chosen.fits:
        verb = "goes to" if verdict.moves else "stays with"
        return f"{verb} {now}: nothing fits what is expected, and it has most free memory"
    if verdict.urgent:
        if here is None:
            return f"goes to {now} at once: the devices cannot be split that way any more"
        return f"goes to {now} at once: {here.reason}; it must hold {assumed}"
    if not verdict.steps:
        return f"stays with {now}: nothing that fits is quicker"
    count = f"{verdict.steps} step{'s' * (verdict.steps > 1)}"
    if verdict.moves:
        return (
            f"goes to {now}: {verdict.saving_s:.3g} s a step quicker, {verdict.lost_s:.3g} s in {count}, "
            f"more than the {verdict.threshold_s:.3g} s that a switch must save"
        )
    return (
        f"stays with {now}: {lead.parallelism} would be {verdict.saving_s:.3g} s a step quicker, "
        f"{verdict.lost_s:.3g} s in {count}, less than the {verdict.threshold_s:.3g} s that a switch must "
        "save"
    )
