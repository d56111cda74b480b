"""Policies to compare with. Pure.

earl-paper          the best per range of context lengths, by the average; no cost, no load (EARL, 3.2)
drift30             plans again when length or load has drifted by 30 % since the last plan
earl-paper-guarded  the same two, among what the memory guard of EARL's policy lets fit
drift30-guarded
greedy              the best for the last step, guarded, whatever a switch costs
safe-static         the quickest of what holds the longest context and highest load that may come, for good
static              never changes
"""

from __future__ import annotations

from bisect import bisect_left

from earl.errors import ConfigError
from earl.parallelism import Parallelism
from services.scheduler.selector.candidate_scores import best, weigh, with_most_memory
from services.scheduler.selector.decision import Decision, LayoutCandidate, LayoutChoice, Outlook, Workload
from services.scheduler.selector.headroom import GROWTH
from services.scheduler.selector.memory_guard import MemoryGuard

PAPER, DRIFT30, GREEDY, SAFE_STATIC = "earl-paper", "drift30", "greedy", "safe-static"
GUARDED = "-guarded"
DRIFT = 0.3

# What is chosen, the candidates, and the reason.
Plan = tuple[LayoutChoice, tuple[LayoutCandidate, ...], str]


class _Planner:
    """Begins with what fits most of the profile, then plans for what the last step brought.

    guarded: chooses among what fits the headroom of EARL's own policy.
    """

    def __init__(self, name: str, table: Outlook, *, guarded: bool) -> None:
        self.name = name
        self._table = table
        self._guard = MemoryGuard(table)
        self._guarded = guarded
        self._now: LayoutChoice | None = None

    def decide(self, step: int, devices: int) -> Decision:
        before, last = self._now and self._now.over(devices), self._guard.last
        if last is None:
            chosen, candidates = with_most_memory(self._table, devices, GROWTH)
            reason = "nothing was seen yet: what fits most of the profile"
        else:
            chosen, candidates, reason = self._plan(before, devices, last)
        decision = Decision(step, before or self._now, chosen, reason, candidates)
        self._now = chosen
        return decision

    def observe(self, workload: Workload) -> None:
        self._guard.observe(workload)

    def _weigh(self, devices: int, load: Workload) -> tuple[LayoutCandidate, ...]:
        return self._guard.weigh(devices, load)[1] if self._guarded else weigh(self._table, devices, load)

    def _plan(self, before: LayoutChoice | None, devices: int, last: Workload) -> Plan:
        """before: the layout in use, None if there is none for so many devices; last: the last step."""
        raise NotImplementedError


class PaperPolicy(_Planner):
    """Parallelism selector of EARL (arXiv 2510.05943, section 3.2), as the paper has it.

    A range of lengths ends at each length that was profiled; what was fastest there is used for all of it,
    at the concurrency that the run began with.
    """

    def __init__(self, table: Outlook, *, guarded: bool = False) -> None:
        super().__init__(PAPER + GUARDED * guarded, table, guarded=guarded)
        self._contexts = sorted({context for context, _ in table.points})
        self._concurrency: float | None = None

    def observe(self, workload: Workload) -> None:
        super().observe(workload)
        self._concurrency = self._concurrency or workload.concurrency

    def _plan(self, before: LayoutChoice | None, devices: int, last: Workload) -> Plan:
        end = self._contexts[min(bisect_left(self._contexts, last.mean_tokens), len(self._contexts) - 1)]
        candidates = self._weigh(devices, Workload(end, end, end, self._concurrency or last.concurrency))
        reason = f"the best for averages up to {end:g} tokens, and that is {last.mean_tokens:.0f}"
        return best(candidates).parallelism, candidates, reason


class DriftPolicy(_Planner):
    """Plans for the last step whenever its mean length or concurrency is 30 % off the last plan's, and, if
    guarded, when the layout in use no longer fits."""

    def __init__(self, table: Outlook, *, guarded: bool = False) -> None:
        super().__init__(DRIFT30 + GUARDED * guarded, table, guarded=guarded)
        self._planned: Workload | None = None

    def _plan(self, before: LayoutChoice | None, devices: int, last: Workload) -> Plan:
        candidates = self._weigh(devices, last)
        fits = not self._guarded or any(each.fits for each in candidates if each.parallelism == before)
        if before is not None and self._planned is not None and _drift(self._planned, last) <= DRIFT and fits:
            return before, candidates, "within 30 % of what was planned for"
        self._planned = last
        return best(candidates).parallelism, candidates, "planned again for what the last step brought"


class GreedyPolicy(_Planner):
    """Goes to the quickest that fits the headroom, by the last step, whatever a switch costs."""

    def __init__(self, table: Outlook) -> None:
        super().__init__(GREEDY, table, guarded=True)

    def _plan(self, before: LayoutChoice | None, devices: int, last: Workload) -> Plan:
        candidates = self._weigh(devices, last)
        return best(candidates).parallelism, candidates, "the quickest of what fits, by the last step"


class SafeStaticPolicy(_Planner):
    """Keeps what a user would choose who knows the bound and nothing of the trace."""

    def __init__(self, table: Outlook) -> None:
        super().__init__(SAFE_STATIC, table, guarded=False)

    def _plan(self, before: LayoutChoice | None, devices: int, last: Workload) -> Plan:
        if before is not None:
            return before, weigh(self._table, devices, last), "it never changes"
        return *with_most_memory(self._table, devices, GROWTH), "other devices: the safe layout of these"


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
