"""Fig. 3: throughput of TP8 relative to TP4, by context and responses, and what the selector does with it.

the paper's table ─► a profile ─► every cell predicted again ─► policies replayed on contexts that grow
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import asdict
from typing import Any

from benchmarks.paper.figure import PaperFigure
from benchmarks.paper.settings import PaperSettings
from earl.parallelism import Parallelism
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import ProfileTable
from services.scheduler.selector import replay
from services.scheduler.selector.decision import Workload
from services.scheduler.selector.policies import policy_of
from services.scheduler.selector.trace import TraceStep

DEVICES = 8
TP4, TP8 = Parallelism(dp=2, tp=4), Parallelism(dp=1, tp=8)
RESPONSES = (8, 16, 32, 64, 128)
# By context in tokens: TP8 over TP4 in percent, at RESPONSES at once; None: TP4 is out of memory there.
PAPER: dict[int, tuple[float | None, ...]] = {
    1024: (-21.1, -32.2, -30.7, -29.1, -6.9),
    2048: (-20.0, -28.6, -26.3, -16.6, -5.5),
    4096: (-18.0, -25.2, -21.9, -5.9, 5.1),
    8192: (-24.7, -20.8, -4.4, 6.4, 5.2),
    16_384: (-18.8, -5.0, 3.4, 5.5, 3.1),
    32_768: (-1.5, 4.6, 5.0, 6.5, None),
}
# The paper gives ratios alone: TP4 has this rate in every cell. Where it is out of memory, TP8 has the ratio
# of half the length.
TP4_TOKENS_PER_S = 100.0
POLICIES = ("earl", "earl-paper", "static:tp=4", "static:tp=8")
GROWTH = 1.1
# The share of a mean step.
SWITCH_COST = 0.1
GOALS = {"cells_reproduced": 30, "oom_steps_max": 0}
COMPARES = (
    "The paper's 30 cells as a profile of 8 devices: TP4 as two replicas, TP8 as one. The paper gives "
    "ratios and no rates, so TP4 has the same rate in every cell, and seconds are in arbitrary units. "
    "cells: what the profile predicts of each cell again. replays: for every number of responses, "
    "contexts grow by a tenth a step from 1K to 32K tokens; all sequences of a step are equally long; a "
    "switch costs a tenth of a mean step; policies as in earl replay. regret_vs_oracle: seconds over "
    "those of the best sequence of layouts, which knows the trace, minus 1. oom_steps_max: steps of the "
    "policy earl that run out of memory, over all traces. The table that decides is the table that "
    "judges. No throughput was measured here."
)


def figure(settings: PaperSettings) -> PaperFigure:
    return PaperFigure("fig3", {"growth": GROWTH, "switch_cost": SWITCH_COST}, measure, GOALS)


def profile() -> ProfileTable:
    """The paper's table as rows of a profile."""
    rows: list[ProfileRow] = []
    beyond: dict[int, float] = {}
    for (context, percents), (index, responses) in itertools.product(PAPER.items(), enumerate(RESPONSES)):
        percent = percents[index]
        tp4 = None if percent is None else TP4_TOKENS_PER_S
        beyond[responses] = beyond[responses] if percent is None else percent
        tp8 = TP4_TOKENS_PER_S * (1 + beyond[responses] / 100)
        rows += [
            ProfileRow("rollout", TP4, context, responses, tp4, oom=percent is None),
            ProfileRow("rollout", TP8, context, responses, tp8),
        ]
    return ProfileTable(rows, "rollout")


def measure() -> dict[str, Any]:
    table = profile()
    cells = [cell(table, context, index) for context in PAPER for index in range(len(RESPONSES))]
    replays = [replayed(table, responses, name) for responses in RESPONSES for name in POLICIES]
    return {
        "compares": COMPARES,
        "cells_reproduced": sum(each["as_in_paper"] for each in cells),
        "oom_steps_max": sum(each["oom_steps"] for each in replays if each["policy"] == "earl"),
        "contexts": [row(cells, context) for context in PAPER],
        "cells": cells,
        "replays": replays,
    }


def cell(table: ProfileTable, context: int, index: int) -> dict[str, Any]:
    """One cell as the profile predicts it, with the paper's. percent: TP8 over TP4; null out of memory."""
    tp4, tp8 = (table.predict(layout, context, RESPONSES[index]) for layout in (TP4, TP8))
    percent = None
    if tp4.fits:
        percent = round((tp8.tokens_per_device_s / tp4.tokens_per_device_s - 1) * 100, 1)
    paper = PAPER[context][index]
    return {
        "context_tokens": context,
        "responses": RESPONSES[index],
        "percent": percent,
        "paper_percent": paper,
        "as_in_paper": percent == paper and tp8.fits,
    }


def row(cells: list[dict[str, Any]], context: int) -> dict[str, Any]:
    """The cells of one context as text, by the number of responses; "oom" where TP4 is out of memory."""
    percents = {
        f"responses_{each['responses']}": "oom" if each["percent"] is None else f"{each['percent']:.1f}"
        for each in cells
        if each["context_tokens"] == context
    }
    return {"context_tokens": context, **percents}


def trace(responses: int) -> list[TraceStep]:
    """Contexts that grow from the shortest to the longest of the paper's."""
    contexts = [float(min(PAPER))]
    while contexts[-1] < max(PAPER):
        contexts.append(min(contexts[-1] * GROWTH, max(PAPER)))
    return [
        TraceStep(step, Workload(tokens, tokens, tokens, responses), DEVICES)
        for step, tokens in enumerate(contexts)
    ]


def replayed(table: ProfileTable, responses: int, name: str) -> dict[str, Any]:
    """The totals of a policy on the trace of so many responses."""
    steps = trace(responses)
    costs = replay.costs_of(table, steps)
    cost_s = SWITCH_COST * statistics.mean(cost.best_s for cost in costs)
    oracle_s = replay.oracle(costs, cost_s)[1]
    taken = list(replay.run(policy_of(name, table, cost_s), steps, costs, cost_s))
    totals = asdict(replay.totals(taken, oracle_s))
    return {
        "responses": responses,
        "policy": name,
        "steps": len(steps),
        "regret_vs_oracle": round(totals["regret_vs_oracle"], 5),
        "switches": totals["switches"],
        "oom_steps": totals["oom_steps"],
    }
