"""The bubble of 1,000 simulated workers: assignment by predicted lengths, in turns, by credit, by an oracle.

    for each case and seed:  a trace of lengths ─► its first epochs fill a history
         ─► the others are played by every policy ─► idle worker-seconds, and seconds until the end

Beside it: how long one plan of 16,384 sequences takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import numpy as np
import typer

from benchmarks.assign.cases import (
    BATCH_GROUPS,
    CASES,
    DEVICES,
    GROUP_SIZE,
    PAPER,
    REPORTED_SEEDS,
    RESHUFFLED,
    TUNING_SEEDS,
)
from benchmarks.assign.judge import JudgedAssignment, figures, judge, recorded_history
from benchmarks.assign.policies import predicted
from benchmarks.goals import missed_goals
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import counted
from benchmarks.record.results import publish
from services.scheduler.assign.plan import EngineFleet, assign

T = TypeVar("T")

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/scheduler/assign",
    "services/scheduler/ledger/admission.py",
    "services/scheduler/ledger/pending.py",
    "services/scheduler/ledger/planned_leases.py",
    "benchmarks/assign",
)
COMPARES = (
    "SIMULATED: no model, no device, no network; the planner, the history, the moves and the admission of "
    "groups are the scheduler's code. 1,000 devices play traces of lengths that are long-tailed and grow. An "
    "engine decodes several sequences at once; a step takes what an 8B model's weights, contexts and "
    "products take by arithmetic, not by measurement. All policies have the same admission: a batch of "
    "16,384 sequences, in groups of 16, is trained once the ledger's rule allows; training takes no time. "
    'round-robin: sequences to engines in turns. credit: as the ledger leases with length_order = "drawn": '
    "an engine with open slots takes the oldest sequences. longest: as it leases with longest: of the oldest "
    "batch the groups first that are predicted to be longest, to each engine its share of them. "
    "planned: as it leases with planned: what is planned for an engine, or what it takes from another's "
    "queue; as longest while predictions are too wrong; nothing that runs moves. history: planned by the "
    "same predictions; sequences that wait, or run, move to engines with open slots, and a moved context is "
    "computed again. "
    "oracle: the same planner and moves with true lengths. bubble: worker-seconds in which an engine has "
    "nothing to decode, until the last sequence of the run ends, as a part of all; an engine that decodes a "
    "single sequence counts as busy. empty: the same of slots. bubble_reduction: 1 less the bubble's seconds "
    "with history over those of round-robin. vs_oracle: seconds until the end over the oracle's. Without a "
    "suffix: ranks change by 3 % between epochs; _reshuffled: by 20 %. plan_ms: one plan of 16,384 sequences "
    "for 1,000 engines, predictions apart."
)
# `_max`: at most; others at least.
GOALS = {
    "bubble_reduction": 0.5,
    "vs_oracle_max": 1.1,
    "plan_ms_max": 100.0,
}
# Plans that are timed for each batch.
TIMED = 5


@app.command(cls=RecordedCommand)
def assign_bench(
    tuning: Annotated[
        bool, typer.Option("--tuning", help="The seeds that constants are chosen on, not those that judge.")
    ] = False,
    cases: Annotated[str, typer.Option(help="Cases, separated by commas, instead of all.")] = "",
    devices: Annotated[int, typer.Option(min=32, help="Devices; batches shrink with them.")] = DEVICES,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Compare assignment by predicted lengths with turns, with leasing by credit, and with true lengths."""
    seeds = TUNING_SEEDS if tuning else REPORTED_SEEDS
    chosen = [case for case in CASES if not cases or case.name in cases.split(",")]
    if not chosen:
        raise typer.BadParameter(f"--cases {cases} names none of {', '.join(case.name for case in CASES)}")
    runs: dict[str, list[JudgedAssignment]] = {case.name: [] for case in chosen}
    todo = [(case, seed) for case in chosen for seed in seeds]
    for case, seed in counted("cases, each with a seed", todo):
        runs[case.name].append(judge(case, seed, devices))
    by_case = {name: figures(judged) for name, judged in runs.items()}
    shown = headline(by_case) | plan_ms(seeds[0], devices)
    result = {
        "compares": COMPARES,
        "goals": GOALS,
        "seeds": list(seeds),
        "held_out": not tuning,
        "devices": devices,
        "batch_sequences": BATCH_GROUPS * devices // DEVICES * GROUP_SIZE,
        "group_size": GROUP_SIZE,
        **shown,
        "missed": missed_goals(shown, GOALS),
        "cases": by_case,
        "by_seed": {
            str(seed): {name: figures([judged[index]]) for name, judged in runs.items()}
            for index, seed in enumerate(seeds)
        },
    }
    publish("assign", result, results, as_json=as_json)


def headline(by_case: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The figures that have goals, and the same of ranks that change more; None where a case was left out."""
    names = (
        "bubble_reduction",
        "bubble_reduction_vs_credit",
        "longest_reduction",
        "longest_reduction_vs_credit",
        "longest_vs_oracle",
        "planned_reduction",
        "planned_reduction_vs_credit",
        "planned_vs_oracle",
        "planned_vs_longest",
        "vs_oracle",
        "vs_oracle_max",
        "vs_round_robin",
        "vs_credit",
    )
    return {
        f"{name}{suffix}": by_case.get(case, {}).get(name)
        for case, suffix in ((PAPER.name, ""), (RESHUFFLED.name, f"_{RESHUFFLED.name}"))
        for name in names
    }


def plan_ms(seed: int, devices: int) -> dict[str, Any]:
    """Milliseconds of plans of the paper's case: the median and the longest, and of the predictions for one.

    Each batch is planned for idle engines, and for engines that the plan before it keeps busy.
    """
    trace = PAPER.trace(seed, devices)
    kinds, kind = PAPER.fleet(devices)
    history = recorded_history(trace)
    plans_ms: list[float] = []
    predictions_ms: list[float] = []
    for batch in trace.epochs[-1]:
        numbers = range(len(batch.prompts))
        lengths, took_ms = timed(predicted, history, batch, numbers, trace.group_size)
        predictions_ms.append(took_ms)
        free_s = np.zeros(len(kind))
        for _ in range(TIMED):
            engines = EngineFleet(kinds, kind, free_s)
            plan, took_ms = timed(assign, batch.prompts, lengths, engines)
            plans_ms.append(took_ms)
            free_s = plan.end_s - plan.end_s.min()
    return {
        "plan_ms": round(statistics.median(plans_ms), 1),
        "plan_ms_max": round(max(plans_ms), 1),
        "predict_ms": round(statistics.median(predictions_ms), 1),
    }


def timed(work: Callable[..., T], *arguments: object) -> tuple[T, float]:
    """(result, milliseconds)."""
    began_s = time.perf_counter()
    result = work(*arguments)
    return result, (time.perf_counter() - began_s) * 1e3
