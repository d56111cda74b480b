"""Judges every policy on one case: EARL's, its rivals with the same memory guard, and static layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.selector.cases import Case
from benchmarks.selector.generate import DEVICES
from earl.parallelism import Parallelism
from services.scheduler.selector import replay
from services.scheduler.selector.decision import Decision, LayoutChoice, Workload
from services.scheduler.selector.policies import policy_of

EARL, PAPER, SAFE_STATIC, BEST_STATIC = "earl", "earl-paper-guarded", "safe-static", "best-static"
RIVALS = (PAPER, "drift30-guarded", "greedy", SAFE_STATIC)
POLICIES = (EARL, *RIVALS, BEST_STATIC)
# Worlds: as the profile has it, and off by noise and drift, where the run's own observations correct.
EXACT, NOISY = "exact", "noisy"
WORLDS = (EXACT, NOISY)


@dataclass(frozen=True, slots=True)
class JudgedCase:
    """One case's totals by world and policy. jumps: steps before which a length or load grew by more than a
    quarter; held: whether some layout holds the whole trace."""

    seed: int
    kind: str
    jumps: int
    held: bool
    totals: dict[str, dict[str, replay.Totals]]


@dataclass(slots=True)
class Fixed:
    """One layout, which needs no table."""

    layout: Parallelism
    name: str = BEST_STATIC

    def decide(self, step: int, devices: int) -> Decision:
        return Decision(step, self.layout, self.layout, "it never changes")

    def observe(self, workload: Workload) -> None:
        """Learns nothing."""


def judge(case: Case) -> JudgedCase:
    """Replays all policies where their tables err, and EARL's and static ones where they are right."""
    totals = {
        EXACT: judged(case, case.exact, (EARL, SAFE_STATIC), learns=False),
        NOISY: judged(case, case.noisy, (EARL, *RIVALS), learns=True),
    }
    return JudgedCase(case.seed, case.kind, case.jumps, case.held, totals)


def judged(
    case: Case, costs: Sequence[replay.Cost], policies: Sequence[str], *, learns: bool
) -> dict[str, replay.Totals]:
    """Totals of these policies and of the best static layout, by name.

    learns: each policy's own observations correct its own table, as in a run.
    """
    oracle_s = replay.oracle(costs, case.switch_cost_s)[1]

    def totals(name: str) -> replay.Totals:
        table = case.table.unlearned()

        def learn(layout: LayoutChoice, load: Workload, tokens_per_device_s: float) -> None:
            if learns:
                assert isinstance(layout, Parallelism)
                table.observe(layout, load.mean_tokens, load.concurrency, tokens_per_device_s)

        policy = policy_of(name, table, case.switch_cost_s)
        return replay.totals(list(replay.run(policy, case.steps, costs, case.switch_cost_s, learn)), oracle_s)

    by_policy = {name: totals(name) for name in policies}
    statics = [
        replay.totals(list(replay.run(Fixed(layout), case.steps, costs, case.switch_cost_s)), oracle_s)
        for layout in case.table.candidates(DEVICES)
    ]
    by_policy[BEST_STATIC] = min(statics, key=lambda static: (static.oom_steps, static.seconds))
    return by_policy
