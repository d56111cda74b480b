"""A policy whose verdicts are told by hand, and steps of a run that it sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from earl.parallelism import Parallelism
from services.scheduler.monitor.length_sketch import Quantiles
from services.scheduler.monitor.workload import KvUse, Monitor, ObservedWorkload, StepFigures
from services.scheduler.parallelism.selector_loop import SelectorLoop
from services.scheduler.selector.decision import Decision, LayoutCandidate, Workload
from services.scheduler.selector.stage_policies import Stages

DP2, TP2 = Parallelism(dp=2), Parallelism(tp=2)


@dataclass
class LongIsSharded:
    """tp2 from `limit` tokens on, dp2 below."""

    limit: float
    now: Parallelism
    name: str = "test"
    seen: list[Workload] = field(default_factory=list)
    cost_s: float = 1.0

    def decide(self, step: int, devices: int) -> Decision:
        last, before = self.seen[-1], self.now
        self.now = TP2 if last.mean_tokens >= self.limit else DP2
        fits = last.max_tokens < 4 * self.limit
        candidates = (
            LayoutCandidate(DP2, 100.0, 1.2 if not fits else 0.5, fits, 2.0, "" if fits else "out of memory"),
            LayoutCandidate(TP2, 120.0, 0.4, True, 1.7),
        )
        reason = f"{'goes to' if self.now != before else 'stays with'} {self.now}: lengths decide"
        return Decision(
            step,
            before,
            self.now,
            reason,
            candidates,
            last,
            "100 x 1.25 = 125 tokens",
            not fits,
            0.3,
            1.0,
            4.0,
        )

    def observe(self, workload: Workload) -> None:
        self.seen.append(workload)

    def settle(self, parallelism: Parallelism) -> None:
        self.now = parallelism

    def price(self, switch_cost_s: float) -> None:
        self.cost_s = switch_cost_s

    def weigh_each(self, counts: Sequence[int], slots: float) -> Mapping[int, Sequence[LayoutCandidate]]:
        return {}


def selecting(
    directory: Path, policy: type[LongIsSharded] = LongIsSharded, stage: str = "rollout"
) -> SelectorLoop:
    """A run's selector with this policy for one stage, that cuts from 100 tokens on."""
    selector = SelectorLoop(directory, Monitor())
    selector.decide_by(lambda: Stages({stage: lambda start: policy(100.0, start)}))
    return selector


def step_of(
    mean_tokens: float, *, running: Parallelism = DP2, stage: str = "rollout", longest: float | None = None
) -> StepFigures:
    """A step of one stage, whose sequences had these lengths."""
    most = longest or 2 * mean_tokens
    workload = Workload(mean_tokens, 1.5 * mean_tokens, most, 16.0)
    seen = ObservedWorkload(workload, 20.0, 90.0, 0.45, KvUse(60.0, 70.0, 100.0))
    lengths = Quantiles(mean_tokens, mean_tokens, 1.5 * mean_tokens, most)
    return StepFigures({stage: running}, {stage: seen}, 0.05, lengths, Quantiles())
