"""Regret, memory and switches of the selector's policies over generated profiles and traces; no cluster.

    for each seed and table:  a profile (tp 1, 2, 4, 8 on 8 devices) ─► a trace of each kind, a switch's cost
         ─► the world, which differs from the profile ─► every policy replayed in it ─► seconds against the
            oracle's, which knows world and trace

Beside it: how long one decision takes with a profile of 1,000 rows.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import view_drawn
from benchmarks.record.results import publish
from benchmarks.selector import figures, generate
from benchmarks.selector.cases import FAMILIES, HELD_OUT_SEEDS, TUNING_SEEDS, case
from benchmarks.selector.judge import JudgedCase, judge
from services.scheduler.selector.policies import policy_of

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/scheduler/selector",
    "services/scheduler/profile",
)

COMPARES = (
    "Policies replayed without a cluster on generated profiles and traces. All decide by the "
    "profile. World `exact` is as the profile has it. In world `noisy` each cell of the profile is off by "
    "up to 10 %, the machine slows to 78 to 100 % over the trace, each step differs by up to 3 %, and each "
    "policy's own observations correct its own table as in a run. Friendly traces (lengths that grow, "
    "burst, or oscillate around a boundary, a load that swings) never grow by more than 25 % a step. "
    "Bursty: lengths jump to up to 8 times for 1 to 3 steps, or once to up to 20 times. Heavy-tailed: "
    "Pareto lengths. Adversarial: lengths alternate between two with different best layouts, or take the "
    "one that EARL's policy has the worse layout for. All policies know the bound of lengths and load that "
    "a user declares, and guard memory in the same way. safe-static: the layout chosen by the profile that "
    "holds that bound; best-static: the best in hindsight. regret: seconds over the oracle's, minus 1; the "
    "oracle knows world and trace and pays for its switches. regret, regret_max: friendly, exact; other "
    "regrets: noisy. vs_safe_static: seconds of safe-static over EARL's, noisy, geometric mean over all "
    "traces. oom_steps_steady: out of memory on traces that never grow by more than 25 % at once; "
    "oom_steps_beyond_jumps: more than one for each step that does. A switch costs between half a percent "
    "of a step and a whole one."
)


@app.command(cls=RecordedCommand)
def selector(
    tables: Annotated[int, typer.Option(min=1, help="Profiles a seed; each has a trace of every kind.")] = 8,
    steps: Annotated[int, typer.Option(min=2, max=generate.STEPS, help="Steps of each trace.")] = (
        generate.STEPS
    ),
    tuning: Annotated[
        bool, typer.Option("--tuning", help="The seeds that rules are tuned on, not those that judge.")
    ] = False,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure regret, memory and switches of the selector's policies over generated profiles and traces."""
    seeds = TUNING_SEEDS if tuning else HELD_OUT_SEEDS
    kinds = [kind for family in FAMILIES.values() for kind in family]
    judged: list[JudgedCase] = []
    with view_drawn():
        for seed in seeds:
            for number in range(tables):
                judged += [judge(case(seed, number, kind, steps)) for kind in kinds]
                sys.stderr.write(f"\rtraces: {len(judged)} of {len(seeds) * tables * len(kinds)}")
    sys.stderr.write("\n")
    headline = figures.headline(judged) | decision_ms()
    result = {
        "compares": COMPARES,
        "seeds": list(seeds),
        "held_out": not tuning,
        "tables": tables,
        "steps": steps,
        "traces": len(judged),
        **headline,
        "missed": figures.missed_goals(headline),
        "by_seed": figures.by_seed(judged),
        "families": figures.by_family(judged),
    }
    publish("selector", result, results, as_json=as_json)


def decision_ms() -> dict[str, float]:
    """Milliseconds of one decision with a profile of 1,000 rows: the median and the longest over a trace."""
    draw = random.Random("rows")
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
