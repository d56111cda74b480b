"""A policy for each stage that has a profile, step by step in a run. Pure.

Each continues from its own decisions, as in a replay: `before` is what it chose last, whatever the stage has.
Where the two differ, the verdict holds what it would run instead. A run that carries decisions out states
before each of them where the stage is: `synchronise`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from earl.errors import ConfigError
from earl.parallelism import Parallelism, Replica
from services.scheduler.selector.corrected_profile import LimitedTable
from services.scheduler.selector.decision import (
    Decision,
    LayoutCandidate,
    LayoutChoice,
    SelectorPolicy,
    Workload,
)


@dataclass(frozen=True, slots=True)
class SelectorVerdict:
    """A stage's parallelism, and its policy's decision for the step to come.

    correction: of the predictions for what runs, by what was observed.
    """

    stage: str
    running: Parallelism
    decision: Decision
    policy: str = ""
    correction: float = 1.0

    @property
    def chosen(self) -> Parallelism:
        """The policy's choice: a parallelism, as one stage alone is decided for."""
        assert isinstance(self.decision.after, Parallelism)
        return self.decision.after

    @property
    def fits(self) -> bool:
        """Returns whether the chosen parallelism fits the expected workload; True without candidates."""
        return self.decision.chosen is None or self.decision.chosen.fits

    @property
    def sentence(self) -> str:
        """The verdict as a sentence: "rollout runs dp2; the selector goes to tp2: ...".

        A reason is a predicate.
        """
        if self.decision.after.replica == self.running.replica and not self.decision.switched:
            return f"{self.stage} {self.decision.reason}"
        return f"{self.stage} runs {self.running}; the selector {self.decision.reason}"


@dataclass(frozen=True, slots=True)
class Observed:
    """A step of a stage: what it ran with, what there was to do, and its throughput, if that is known."""

    running: Parallelism
    workload: Workload
    tokens_per_device_s: float | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """A former scheduler's decision for `step`, after what was observed. before: its choice until then."""

    step: int
    observed: Observed
    before: Parallelism


class CorrectedPolicy(SelectorPolicy, Protocol):
    """A policy that is told the outcome of its decisions."""

    def settle(self, parallelism: Parallelism) -> None:
        """Sets the stage's actual parallelism."""
        ...

    def price(self, switch_cost_s: float) -> None:
        """Sets the cost of a switch."""
        ...

    def weigh_each(self, counts: Sequence[int], slots: float) -> Mapping[int, Sequence[LayoutCandidate]]:
        """The layouts on each of several numbers of devices, for the same headroom on all of them. slots:
        sequences that a device works on at once."""
        ...


class Stages:
    """The policies of all stages.

    make: the policy that begins with a parallelism; tables: what its predictions come from.
    """

    def __init__(
        self,
        make: Mapping[str, Callable[[Parallelism], CorrectedPolicy]],
        tables: Mapping[str, LimitedTable] | None = None,
    ) -> None:
        self.names = frozenset(make)
        self._make = make
        self._tables = tables or {}
        self._policies: dict[str, CorrectedPolicy] = {}
        # What each policy takes its stage to have.
        self._assumed: dict[str, LayoutChoice] = {}

    def restore(self, stage: str, past: Sequence[Past]) -> None:
        """Brings a policy to where these decisions, oldest first, left it.

        Raises ConfigError, and then the stage begins again.
        """
        if not past:
            return
        policy = self._make[stage](past[0].before)
        assumed: LayoutChoice = past[0].before
        for decided in past:
            self._correct(stage, decided.observed)
            policy.observe(decided.observed.workload)
            assumed = policy.decide(decided.step, decided.observed.running.devices).after
        self._policies[stage], self._assumed[stage] = policy, assumed

    def decide(self, stage: str, observed: Observed, step: int) -> SelectorVerdict:
        """Decides for `step`, after the one observed. Raises ConfigError where the profile has no answer."""
        policy = self._policy(stage, observed.running)
        factor = self._correct(stage, observed)
        policy.observe(observed.workload)
        decision = policy.decide(step, observed.running.devices)
        self._assumed[stage] = decision.after
        return SelectorVerdict(stage, observed.running, decision, policy.name, factor)

    def synchronise(
        self, stage: str, heading: Parallelism, cost_s: float | None, barred: Mapping[Replica, str]
    ) -> None:
        """Updates a stage's parallelism, switch cost and barred replicas before a decision.

        heading: the parallelism that it has or is being switched to. cost_s: of a switch, as measured.
        barred: no candidates, with the reason for each.
        """
        policy = self._policy(stage, heading)
        if self._assumed[stage].replica != heading.replica:
            policy.settle(heading)
            self._assumed[stage] = heading
        if cost_s is not None:
            policy.price(cost_s)
        if stage in self._tables:
            self._tables[stage].bar(barred)

    def weigh_each(
        self, stage: str, counts: Sequence[int], slots: float
    ) -> Mapping[int, Sequence[LayoutCandidate]]:
        """The layouts of a stage on each of several numbers of devices, as its policy weighs them after what
        it observed last; none where nothing was decided for it yet."""
        return self._policies[stage].weigh_each(counts, slots) if stage in self._policies else {}

    def holds(self, stage: str, layout: Parallelism, context_tokens: float) -> bool:
        """Returns whether a layout of a stage holds one sequence of so many tokens; True where the stage's
        table does not know the layout."""
        table = self._tables.get(stage)
        try:
            return table is None or table.uncorrected(layout, context_tokens, 1.0).fits
        except ConfigError:
            return True

    def block(self, stage: str, layout: Parallelism, context_tokens: float) -> None:
        """A sequence of so many tokens waited, because no engine of that layout could hold it."""
        if stage in self._tables:
            self._tables[stage].block(layout, context_tokens)

    def _policy(self, stage: str, start: Parallelism) -> CorrectedPolicy:
        if stage not in self._policies:
            self._policies[stage], self._assumed[stage] = self._make[stage](start), start
        return self._policies[stage]

    def _correct(self, stage: str, observed: Observed) -> float:
        """Corrects predictions by what ran; returns the factor that they are multiplied by."""
        table, load = self._tables.get(stage), observed.workload
        if table is None:
            return 1.0
        place = observed.running, load.mean_tokens, load.concurrency
        if observed.tokens_per_device_s is not None:
            table.observe(*place, observed.tokens_per_device_s)
        return table.correction(*place)
