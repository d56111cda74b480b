"""Policies to compare with. Pure.

earl-paper   the best per range of context lengths, by the average length; no cost, no load (EARL, 3.2)
drift30      plans anew when length or load has drifted by 30 % since the last plan
static       never changes
"""

from __future__ import annotations

from bisect import bisect_left

from earl.errors import ConfigError
from earl.parallelism import Parallelism
from services.scheduler.selector.decision import Decision, LayoutCandidate, LayoutChoice, Outlook, Workload
from services.scheduler.selector.weigh import best, roomiest, weigh

DRIFT = 0.3
MARGIN = 1.25


class PaperPolicy:
    """Parallelism selector of EARL (arXiv 2510.05943, section 3.2), as the paper has it.

    A range of lengths ends at each length that was profiled; what was fastest there is used for all of it,
    at the concurrency that the run began with.
    """

    name = "earl-paper"

    def __init__(self, table: Outlook) -> None:
        self._table = table
        self._contexts = sorted({context for context, _ in table.points})
        self._concurrency: float | None = None
        self._mean: float = 0.0
        self._now: LayoutChoice | None = None

    def decide(self, step: int, devices: int) -> Decision:
        before = self._now and self._now.over(devices)
        if self._concurrency is None:
            chosen, candidates = roomiest(self._table, devices, MARGIN)
            reason = "nothing was seen yet: what fits most of the profile"
        else:
            end = self._contexts[min(bisect_left(self._contexts, self._mean), len(self._contexts) - 1)]
            load = Workload(end, end, end, self._concurrency)
            candidates = weigh(self._table, devices, load)
            chosen = best(candidates).parallelism
            reason = f"the best for averages up to {end:g} tokens, and that is {self._mean:.0f}"
        decision = Decision(step, before or self._now, chosen, reason, candidates)
        self._now = chosen
        return decision

    def observe(self, workload: Workload) -> None:
        self._mean = workload.mean_tokens
        if self._concurrency is None:
            self._concurrency = workload.concurrency


class DriftPolicy:
    """Plans for the last step whenever its mean length or concurrency is 30 % off the last plan's."""

    name = "drift30"

    def __init__(self, table: Outlook) -> None:
        self._table = table
        self._last: Workload | None = None
        self._planned: Workload | None = None
        self._now: LayoutChoice | None = None

    def decide(self, step: int, devices: int) -> Decision:
        before = self._now and self._now.over(devices)
        candidates: tuple[LayoutCandidate, ...]
        if self._last is None:
            chosen, candidates = roomiest(self._table, devices, MARGIN)
            reason = "nothing was seen yet: what fits most of the profile"
        elif before is None or self._planned is None or _drift(self._planned, self._last) > DRIFT:
            candidates = weigh(self._table, devices, self._last)
            chosen, self._planned = best(candidates).parallelism, self._last
            reason = "planned anew for what the last step brought"
        else:
            candidates = weigh(self._table, devices, self._last)
            chosen, reason = before, "within 30 % of what was planned for"
        decision = Decision(step, before or self._now, chosen, reason, candidates)
        self._now = chosen
        return decision

    def observe(self, workload: Workload) -> None:
        self._last = workload


class StaticPolicy:
    """One parallelism, whatever comes. Raises ConfigError where devices cannot be cut so."""

    def __init__(self, table: Outlook, parallelism: Parallelism) -> None:
        self.name = (
            f"static:{','.join(f'{k}={v}' for k, v in parallelism.as_dict().items() if v > 1) or 'tp=1'}"
        )
        self._table = table
        self._fixed = parallelism
        self._last: Workload | None = None
        self._began = False

    def decide(self, step: int, devices: int) -> Decision:
        chosen = next(
            (
                candidate
                for candidate in self._table.candidates(devices)
                if candidate.replica == self._fixed.replica
            ),
            None,
        )
        if chosen is None:
            raise ConfigError(
                f"policy {self.name}: the profile has no {self._fixed} for {devices} devices",
                f"it has {', '.join(map(str, self._table.candidates(devices)))}",
            )
        candidates = weigh(self._table, devices, self._last) if self._last else ()
        before = chosen if self._began else None
        self._began = True
        return Decision(step, before, chosen, "it never changes", candidates)

    def observe(self, workload: Workload) -> None:
        self._last = workload


def _drift(planned: Workload, observed: Workload) -> float:
    pairs = ((planned.mean_tokens, observed.mean_tokens), (planned.concurrency, observed.concurrency))
    return max(abs(b / a - 1) for a, b in pairs)
