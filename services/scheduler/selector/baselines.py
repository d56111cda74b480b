"""Policies to compare with. Pure.

earl-paper   the best per range of context lengths, by the average length; no cost, no load (EARL, 3.2)
drift30      plans again when length or load has drifted by 30 % since the last plan
static       never changes
"""

from __future__ import annotations

from bisect import bisect_left

from earl.errors import ConfigError
from earl.parallelism import Parallelism
from services.scheduler.selector.candidate_scores import best, weigh, with_most_memory
from services.scheduler.selector.decision import Decision, LayoutCandidate, LayoutChoice, Outlook, Workload

DRIFT = 0.3
MARGIN = 1.25

# What is chosen, the candidates, and the reason.
Plan = tuple[LayoutChoice, tuple[LayoutCandidate, ...], str]


class _Planner:
    """Begins with what fits most of the profile, then plans for what the last step brought."""

    def __init__(self, table: Outlook) -> None:
        self._table = table
        self._last: Workload | None = None
        self._now: LayoutChoice | None = None

    def decide(self, step: int, devices: int) -> Decision:
        before = self._now and self._now.over(devices)
        if self._last is None:
            chosen, candidates = with_most_memory(self._table, devices, MARGIN)
            reason = "nothing was seen yet: what fits most of the profile"
        else:
            chosen, candidates, reason = self._plan(before, devices, self._last)
        decision = Decision(step, before or self._now, chosen, reason, candidates)
        self._now = chosen
        return decision

    def observe(self, workload: Workload) -> None:
        self._last = workload

    def _plan(self, before: LayoutChoice | None, devices: int, last: Workload) -> Plan:
        """before: the layout in use, None if there is none for so many devices; last: the last step."""
        raise NotImplementedError


class PaperPolicy(_Planner):
    """Parallelism selector of EARL (arXiv 2510.05943, section 3.2), as the paper has it.

    A range of lengths ends at each length that was profiled; what was fastest there is used for all of it,
    at the concurrency that the run began with.
    """

    name = "earl-paper"

    def __init__(self, table: Outlook) -> None:
        super().__init__(table)
        self._contexts = sorted({context for context, _ in table.points})
        self._concurrency: float | None = None

    def observe(self, workload: Workload) -> None:
        super().observe(workload)
        self._concurrency = self._concurrency or workload.concurrency

    def _plan(self, before: LayoutChoice | None, devices: int, last: Workload) -> Plan:
        end = self._contexts[min(bisect_left(self._contexts, last.mean_tokens), len(self._contexts) - 1)]
        load = Workload(end, end, end, self._concurrency or last.concurrency)
        candidates = weigh(self._table, devices, load)
        reason = f"the best for averages up to {end:g} tokens, and that is {last.mean_tokens:.0f}"
        return best(candidates).parallelism, candidates, reason


class DriftPolicy(_Planner):
    """Plans for the last step whenever its mean length or concurrency is 30 % off the last plan's."""

    name = "drift30"

    def __init__(self, table: Outlook) -> None:
        super().__init__(table)
        self._planned: Workload | None = None

    def _plan(self, before: LayoutChoice | None, devices: int, last: Workload) -> Plan:
        candidates = weigh(self._table, devices, last)
        if before is not None and self._planned is not None and _drift(self._planned, last) <= DRIFT:
            return before, candidates, "within 30 % of what was planned for"
        self._planned = last
        return best(candidates).parallelism, candidates, "planned again for what the last step brought"


class StaticPolicy:
    """One parallelism, whatever comes. Raises ConfigError where devices do not make it."""

    def __init__(self, table: Outlook, parallelism: Parallelism) -> None:
        degrees = ",".join(f"{name}={value}" for name, value in parallelism.as_dict().items() if value > 1)
        self.name = f"static:{degrees or 'tp=1'}"
        self._table = table
        self._fixed = parallelism
        self._last: Workload | None = None
        self._began = False

    def decide(self, step: int, devices: int) -> Decision:
        layouts = self._table.candidates(devices)
        fixed = [layout for layout in layouts if layout.replica == self._fixed.replica]
        if not fixed:
            raise ConfigError(
                f"policy {self.name}: the profile has no {self._fixed} for {devices} devices",
                f"it has {', '.join(map(str, layouts))}",
            )
        chosen, candidates = fixed[0], weigh(self._table, devices, self._last) if self._last else ()
        before = chosen if self._began else None
        self._began = True
        return Decision(step, before, chosen, "it never changes", candidates)

    def observe(self, workload: Workload) -> None:
        self._last = workload


def _drift(planned: Workload, observed: Workload) -> float:
    pairs = ((planned.mean_tokens, observed.mean_tokens), (planned.concurrency, observed.concurrency))
    return max(abs(b / a - 1) for a, b in pairs)
