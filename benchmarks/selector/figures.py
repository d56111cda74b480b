"""The figures of judged cases, the goals that they have, and which are missed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.selector.cases import FAMILIES
from benchmarks.selector.judge import (
    BEST_STATIC,
    EARL,
    EXACT,
    NOISY,
    PAPER,
    POLICIES,
    SAFE_STATIC,
    WORLDS,
    JudgedCase,
)
from services.scheduler.selector.replay import Totals

# At most.
GOALS = {
    "regret": 0.015,
    "regret_beyond_best_static": 0.0,
    "regret_max": 0.10,
    "regret_noisy": 0.03,
    "regret_bursty": 0.06,
    "regret_heavy_tailed": 0.06,
    "slower_than_safe_static_adversarial": 0.05,
    "oom_steps_steady": 0,
    "oom_steps_beyond_jumps": 0,
    "switches_vs_paper": 0.5,
    "decision_ms_max": 10.0,
}


def headline(cases: Sequence[JudgedCase]) -> dict[str, Any]:
    """The figures that have goals, but for the decision's time, and what they are compared with."""
    friendly, oscillating = of("friendly", cases), [case for case in cases if case.kind == "oscillation"]
    regret, best = mean_regret(friendly, EXACT, EARL), mean_regret(friendly, EXACT, BEST_STATIC)
    steady = [case for case in cases if case.held and not case.jumps]
    switched = {policy: total(oscillating, NOISY, policy, switches) for policy in (EARL, PAPER)}
    return {
        "vs_safe_static": vs_safe_static(cases),
        "vs_safe_static_friendly": vs_safe_static(friendly),
        "vs_safe_static_least": round(min(map(over_safe_static, cases)), 4),
        "regret": regret,
        "regret_best_static": best,
        "regret_beyond_best_static": round(regret - best, 5),
        "regret_max": max_regret(friendly, EXACT),
        "regret_noisy": mean_regret(friendly, NOISY, EARL),
        "regret_noisy_best_static": mean_regret(friendly, NOISY, BEST_STATIC),
        "regret_noisy_max": max_regret(friendly, NOISY),
        "regret_bursty": mean_regret(of("bursty", cases), NOISY, EARL),
        "regret_heavy_tailed": mean_regret(of("heavy-tailed", cases), NOISY, EARL),
        "regret_adversarial": mean_regret(of("adversarial", cases), NOISY, EARL),
        "slower_than_safe_static_adversarial": round(
            max(1 / over_safe_static(case) - 1 for case in of("adversarial", cases)), 4
        ),
        "oom_steps_steady": max(total(steady, world, EARL, oom_steps) for world in WORLDS),
        "oom_steps_beyond_jumps": sum(
            max(0, max(case.totals[world][EARL].oom_steps for world in WORLDS) - case.jumps)
            for case in cases
            if case.held
        ),
        "switches_vs_paper": round(switched[EARL] / max(1, switched[PAPER]), 4),
    }


def missed_goals(figures: Mapping[str, Any]) -> list[str]:
    """Names of the goals that the figures do not meet."""
    return [name for name, most in GOALS.items() if figures[name] > most]


def by_family(cases: Sequence[JudgedCase]) -> dict[str, Any]:
    """The policies' figures by family of traces and world, and those of each kind of trace."""
    families: dict[str, Any] = {}
    for family, kinds in FAMILIES.items():
        judged = of(family, cases)
        families[family] = {"vs_safe_static": vs_safe_static(judged)} | {
            world: {policy: summary(judged, world, policy) for policy in judged[0].totals[world]}
            for world in WORLDS
        }
        of_kinds = {kind: by_policy([case for case in judged if case.kind == kind]) for kind in kinds}
        families[family]["kinds"] = of_kinds
    return families


def by_policy(cases: Sequence[JudgedCase]) -> dict[str, Any]:
    """Each policy's mean regret in the world that its table errs about, and vs_safe_static of EARL's."""
    regrets = {policy: mean_regret(cases, NOISY, policy) for policy in POLICIES}
    return {"vs_safe_static": vs_safe_static(cases), "regret": regrets}


def by_seed(cases: Sequence[JudgedCase]) -> dict[str, Any]:
    """The headline of each seed alone."""
    seeds = sorted({case.seed for case in cases})
    return {str(seed): headline([case for case in cases if case.seed == seed]) for seed in seeds}


def summary(cases: Sequence[JudgedCase], world: str, policy: str) -> dict[str, Any]:
    """Figures of one policy. regret: mean over all traces; regret_max: of the worst trace."""
    regrets = [case.totals[world][policy].regret_vs_oracle for case in cases]
    return {
        "regret": round(statistics.mean(regrets), 5),
        "regret_max": round(max(regrets), 4),
        "oom_steps": total(cases, world, policy, oom_steps),
        "switches": total(cases, world, policy, switches),
    }


def of(family: str, cases: Iterable[JudgedCase]) -> list[JudgedCase]:
    """The cases of a family of traces."""
    return [case for case in cases if case.kind in FAMILIES[family]]


def over_safe_static(case: JudgedCase) -> float:
    """Seconds of the safe static layout over EARL's, in the world that both tables err about."""
    noisy = case.totals[NOISY]
    return noisy[SAFE_STATIC].seconds / noisy[EARL].seconds


def vs_safe_static(cases: Sequence[JudgedCase]) -> float:
    """The geometric mean over traces: above 1 where EARL's policy is quicker."""
    return round(statistics.geometric_mean(map(over_safe_static, cases)), 4)


def mean_regret(cases: Sequence[JudgedCase], world: str, policy: str) -> float:
    return round(statistics.mean(case.totals[world][policy].regret_vs_oracle for case in cases), 5)


def max_regret(cases: Sequence[JudgedCase], world: str) -> float:
    return round(max(case.totals[world][EARL].regret_vs_oracle for case in cases), 4)


def total(cases: Iterable[JudgedCase], world: str, policy: str, count: Callable[[Totals], int]) -> int:
    return sum(count(case.totals[world][policy]) for case in cases)


def oom_steps(totals: Totals) -> int:
    return totals.oom_steps


def switches(totals: Totals) -> int:
    return totals.switches
