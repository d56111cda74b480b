"""Regret, memory and switches of the selector's policies over generated profiles and traces; no cluster.

    for each table:  a profile (tp 1, 2, 4, 8 on 8 devices) ─► a trace of each kind, a cost of a switch
                     ─► every policy replayed on it ─► seconds against the oracle's, which knows the trace

Beside it: how long one decision takes with a profile of 1,000 rows.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import view_drawn
from benchmarks.record.results import publish
from benchmarks.selector import generate
from services.scheduler.profile.table import ProfileTable
from services.scheduler.selector import replay
from services.scheduler.selector.policies import policy_of
from services.scheduler.selector.trace import TraceStep

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/scheduler/selector",
    "services/scheduler/profile",
)

POLICIES = ("earl", "earl-paper", "drift30")
COMPARES = (
    "Policies on the same generated profiles and traces, replayed without a cluster: lengths that grow (16 "
    "to 48 times), that burst, that oscillate around a boundary between two parallelisms, and a load that "
    "swings. No length and no load grows by more than 25 % from one step to the next, and traces stay a "
    "tenth short of what the largest layout holds. A switch costs between half a percent of a step and a "
    "whole one. regret: seconds over the oracle's, minus 1; the oracle knows the trace and pays for its "
    "switches (dynamic programming). switches_vs_paper: on the oscillating traces, of earl over those of "
    "earl-paper."
)


@app.command(cls=RecordedCommand)
def selector(
    seed: Annotated[int, typer.Option(min=0, help="Seed of profiles and traces.")] = 0,
    tables: Annotated[int, typer.Option(min=1, help="Profiles; each has a trace of every kind.")] = 80,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure regret, memory and switches of the selector's policies over generated profiles and traces."""
    outcomes: dict[str, dict[str, list[replay.Totals]]] = {
        name: {kind: [] for kind in generate.KINDS} for name in (*POLICIES, "static-best")
    }
    with view_drawn():
        for number in range(tables):
            draw = random.Random(f"{seed}/{number}")
            table = generate.table(draw)
            for kind in generate.KINDS:
                steps = generate.trace(kind, table, draw)
                cost_s = mean_step_s(table, steps) * 10 ** draw.uniform(-2.3, 0.0)
                for name, totals in judged(table, steps, cost_s).items():
                    outcomes[name][kind].append(totals)
            sys.stderr.write(f"\rtables: {number + 1} of {tables}")
    sys.stderr.write("\n")
    policies = {name: figures(by_kind) for name, by_kind in outcomes.items()}
    ours, paper = outcomes["earl"], outcomes["earl-paper"]
    result = {
        "compares": COMPARES,
        "seed": seed,
        "traces": tables * len(generate.KINDS),
        "regret": policies["earl"]["regret"],
        "oom_steps": policies["earl"]["oom_steps"],
        "switches_vs_paper": round(switches(ours["oscillation"]) / max(1, switches(paper["oscillation"])), 4),
        **decision_ms(seed),
        "policies": policies,
    }
    publish("selector", result, results, as_json=as_json)


def judged(table: ProfileTable, steps: list[TraceStep], cost_s: float) -> dict[str, replay.Totals]:
    """The totals of every policy on one trace, and of the one parallelism that is best for all of it."""
    oracle_s = replay.oracle(table, steps, cost_s)[1]

    def totals(name: str) -> replay.Totals:
        return replay.totals(list(replay.run(policy_of(name, table, cost_s), table, steps, cost_s)), oracle_s)

    by_policy = {name: totals(name) for name in POLICIES}
    statics = [totals(f"static:tp={layout.tp}") for layout in table.candidates(generate.DEVICES)]
    by_policy["static-best"] = min(statics, key=lambda static: (static.oom_steps, static.seconds))
    return by_policy


def figures(by_kind: dict[str, list[replay.Totals]]) -> dict[str, Any]:
    """Figures of one policy. regret: mean over all traces. regret_max: that of the worst trace."""
    everything = [trace for traces in by_kind.values() for trace in traces]
    regrets = [trace.regret_vs_oracle for trace in everything]
    return {
        "regret": round(statistics.mean(regrets), 5),
        "regret_median": round(statistics.median(regrets), 5),
        "regret_max": round(max(regrets), 4),
        "oom_steps": sum(trace.oom_steps for trace in everything),
        "switches": switches(everything),
        "by_kind": {
            kind: {
                "regret": round(statistics.mean(trace.regret_vs_oracle for trace in traces), 5),
                "oom_steps": sum(trace.oom_steps for trace in traces),
                "switches": switches(traces),
            }
            for kind, traces in by_kind.items()
        },
    }


def switches(traces: list[replay.Totals]) -> int:
    return sum(trace.switches for trace in traces)


def mean_step_s(table: ProfileTable, steps: list[TraceStep]) -> float:
    """Mean seconds of a step on the best layout that fits."""
    return statistics.mean(replay.cost(table, step.devices, step.workload).best_s for step in steps)


def decision_ms(seed: int) -> dict[str, float]:
    """Milliseconds of one decision with a profile of 1,000 rows: the median and the longest over a trace."""
    draw = random.Random(f"{seed}/rows")
    contexts = [round(512 * 2 ** (power / 6)) for power in range(50)]
    table = generate.table(draw, contexts, (8, 16, 32, 64, 128))
    policy = policy_of("earl", table, 1.0)
    took: list[float] = []
    for step in generate.trace("load", table, draw):
        took.append(timed(lambda step=step: policy.decide(step.step, step.devices)))
        policy.observe(step.workload)
    # The first decision is apart: it weighs all points of the profile, once a run.
    return {
        "rows": len(table.rows),
        "decision_ms": round(statistics.median(took[1:]) * 1e3, 3),
        "decision_ms_max": round(max(took[1:]) * 1e3, 3),
        "first_decision_ms": round(took[0] * 1e3, 3),
    }


def timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s
