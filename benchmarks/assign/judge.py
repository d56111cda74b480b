"""Plays one case under every policy, and the figures of cases over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.assign.cases import DEVICES, PLAYED_EPOCHS, AssignCase
from benchmarks.assign.policies import (
    CREDIT,
    HISTORY,
    LONGEST,
    ORACLE,
    PLANNED,
    POLICIES,
    ROUND_ROBIN,
    Credit,
    LeasedAsPlanned,
    Longest,
    Planned,
    RoundRobin,
    observe,
)
from benchmarks.assign.simulate import FleetTimes, SimulatedFleet
from benchmarks.assign.traces import LengthTrace, joined
from services.scheduler.assign.history import LengthHistory, PredictionError


@dataclass(frozen=True, slots=True)
class JudgedAssignment:
    """One case and seed: times by policy. error: of the predictions of the batches that were played."""

    case: str
    seed: int
    rank_change: float
    error: PredictionError
    times: Mapping[str, FleetTimes]


def judge(case: AssignCase, seed: int, devices: int = DEVICES) -> JudgedAssignment:
    """Plays the last epochs of the case's trace under every policy. Deterministic."""
    return judged(case, seed, case.trace(seed, devices), devices)


def judged(case: AssignCase, seed: int, trace: LengthTrace, devices: int) -> JudgedAssignment:
    """Plays the last PLAYED_EPOCHS of a trace; the history has recorded those before."""
    batches = [batch for epoch in trace.epochs[-PLAYED_EPOCHS:] for batch in epoch]
    kinds, kind = case.fleet(devices)
    history = recorded_history(trace)
    times: dict[str, FleetTimes] = {}
    for name in POLICIES:
        fleet = SimulatedFleet(kinds, kind, batches, trace.group_size, case.staleness)
        if name == ROUND_ROBIN:
            policy = RoundRobin(fleet)
        elif name == CREDIT:
            policy = Credit()
        elif name == LONGEST:
            policy = Longest(fleet, recorded_history(trace))
        elif name == PLANNED:
            policy = LeasedAsPlanned(fleet, recorded_history(trace))
        else:
            policy = Planned(fleet, history if name == HISTORY else None)
        times[name] = fleet.run(policy)
    return JudgedAssignment(case.name, seed, trace.rank_change, history.error, times)


def recorded_history(trace: LengthTrace) -> LengthHistory:
    """The history of a trace's epochs before those that are played."""
    history = LengthHistory()
    group = -1
    for epoch in trace.epochs[:-PLAYED_EPOCHS]:
        sequences = joined(epoch)
        for number in range(len(sequences.task)):
            # Numbers below 0 are those of groups before the simulated run.
            group -= number % trace.group_size == 0
            observe(history, sequences, number, group)
    return history


def figures(runs: Sequence[JudgedAssignment]) -> dict[str, Any]:
    """The figures of one case over seeds.

    bubble_reduction: 1 less the bubble of `history` over that of round-robin, bubbles of all seeds together;
    longest_reduction, planned_reduction: of these. planned_vs_longest: seconds of `longest` over those of
    `planned`.
    vs_oracle: seconds of `history` over those of the oracle, mean over seeds; _max: of the worst seed.
    """
    ratios = [seconds(run, HISTORY) / seconds(run, ORACLE) for run in runs]
    factors = [run.error.factor for run in runs if run.error.factor is not None]
    covered = [run.error.covered for run in runs if run.error.covered is not None]
    return {
        "bubble_reduction": reduction(runs, ROUND_ROBIN),
        "bubble_reduction_vs_credit": reduction(runs, CREDIT),
        "longest_reduction": reduction(runs, ROUND_ROBIN, LONGEST),
        "longest_reduction_vs_credit": reduction(runs, CREDIT, LONGEST),
        "longest_vs_oracle": round(
            statistics.fmean(seconds(run, LONGEST) / seconds(run, ORACLE) for run in runs), 4
        ),
        "planned_reduction": reduction(runs, ROUND_ROBIN, PLANNED),
        "planned_reduction_vs_credit": reduction(runs, CREDIT, PLANNED),
        "planned_vs_oracle": round(
            statistics.fmean(seconds(run, PLANNED) / seconds(run, ORACLE) for run in runs), 4
        ),
        "planned_vs_longest": speedup(runs, LONGEST, PLANNED),
        "vs_oracle": round(statistics.fmean(ratios), 4),
        "vs_oracle_max": round(max(ratios), 4),
        "vs_round_robin": speedup(runs, ROUND_ROBIN),
        "vs_credit": speedup(runs, CREDIT),
        "rank_change": round(statistics.fmean(run.rank_change for run in runs), 4),
        "prediction_factor": round(statistics.fmean(factors), 4) if factors else None,
        "prediction_covered": round(statistics.fmean(covered), 4) if covered else None,
        "policies": {name: of_policy(runs, name) for name in POLICIES},
    }


def of_policy(runs: Sequence[JudgedAssignment], name: str) -> dict[str, Any]:
    """A policy's means over seeds. bubble, empty: parts of all worker-seconds and slot-seconds."""
    times = [run.times[name] for run in runs]
    worker_s = sum(each.seconds * each.engines for each in times)
    return {
        "seconds": round(statistics.fmean(each.seconds for each in times), 1),
        "bubble": round(sum(each.idle_s for each in times) / worker_s, 4),
        "empty": round(sum(each.empty_s for each in times) / worker_s, 4),
        "moved": round(statistics.fmean(each.moved for each in times), 1),
    }


def reduction(runs: Sequence[JudgedAssignment], rival: str, name: str = HISTORY) -> float | None:
    """1 less the bubble under a policy over a rival's; None if that has none."""
    rivals_s = sum(run.times[rival].idle_s for run in runs)
    ours_s = sum(run.times[name].idle_s for run in runs)
    return round(1 - ours_s / rivals_s, 4) if rivals_s > 0 else None


def speedup(runs: Sequence[JudgedAssignment], rival: str, name: str = HISTORY) -> float:
    """Seconds of a rival over those of a policy: the geometric mean over seeds."""
    return round(statistics.geometric_mean(seconds(run, rival) / seconds(run, name) for run in runs), 4)


def seconds(run: JudgedAssignment, policy: str) -> float:
    return run.times[policy].seconds
