"""Traces that keep no promise: lengths jump, have heavy tails, or change when it hurts most. Deterministic.

jumps        every 5 to 15 steps lengths grow to twice to eight times at once, for one to three steps
first-jump   short, then in one step 4 to 20 times as long, and from there on long
pareto       each sequence's length is Pareto distributed (shape 1.1 to 2), cut off at what a layout holds
flips        lengths alternate every few steps between two at which different layouts are best
spite        each step has that one of the two which EARL's policy has the worse layout for
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

from benchmarks.selector.generate import DEVICES, STEPS, limit
from services.scheduler.profile.table import ProfileTable
from services.scheduler.selector import replay
from services.scheduler.selector.decision import Workload
from services.scheduler.selector.earl_policy import EarlPolicy
from services.scheduler.selector.trace import TraceStep

BURSTY, HEAVY_TAILED, ADVERSARIAL = ("jumps", "first-jump"), ("pareto",), ("flips", "spite")
KINDS = (*BURSTY, *HEAVY_TAILED, *ADVERSARIAL)
_LOADS = (16.0, 32.0, 64.0, 128.0)
# Lengths of bursts and of adversarial traces grow by this factor at most; those of a first jump by more.
MOST_JUMP = 8.0
# Lengths tried for the two between which an adversarial trace changes.
_LENGTHS = 12


def trace(kind: str, table: ProfileTable, draw: random.Random, cost_ratio: float) -> list[TraceStep]:
    """STEPS steps that some layout of the table holds.

    cost_ratio: a switch's cost over the mean step's, as EARL's policy of a "spite" trace has it.
    """
    load = draw.choice(_LOADS)
    most = limit(table, load)
    if kind in ADVERSARIAL:
        pair = _pair(table, draw, most, load)
        if kind == "flips":
            period = draw.choice((1, 2, 3, 5, 8, 13))
            return [TraceStep(step, pair[step // period % 2], DEVICES) for step in range(STEPS)]
        return _spite(table, pair, cost_ratio)
    make: dict[str, Callable[[random.Random, float, float], list[Workload]]] = {
        "jumps": _jumps, "first-jump": _first_jump, "pareto": _pareto,
    }  # fmt: skip
    return [TraceStep(step, load, DEVICES) for step, load in enumerate(make[kind](draw, most, load))]


def _workload(mean: float, longest: float, load: float) -> Workload:
    return Workload(min(mean, longest), min(1.2 * mean, longest), longest, load)


def _jumps(draw: random.Random, most: float, load: float) -> list[Workload]:
    spread, base = draw.uniform(1.3, 2.5), most / draw.uniform(4, 30)
    workloads: list[Workload] = []
    while len(workloads) < STEPS:
        quiet, high = draw.randint(5, 15), draw.randint(1, 3)
        factor = draw.uniform(2.0, MOST_JUMP)
        for step in range(quiet + high):
            mean = base * draw.uniform(0.95, 1.05) * (factor if step >= quiet else 1.0) / spread
            workloads.append(_workload(mean, min(mean * spread, most), load))
    return workloads[:STEPS]


def _first_jump(draw: random.Random, most: float, load: float) -> list[Workload]:
    spread, first_long = draw.uniform(1.3, 2.5), draw.randint(20, 80)
    after = most * draw.uniform(0.6, 1.0) / spread
    before = after / draw.uniform(4, 20)
    workloads: list[Workload] = []
    for step in range(STEPS):
        mean = (after if step >= first_long else before) * draw.uniform(0.95, 1.05)
        workloads.append(_workload(mean, min(mean * spread, most), load))
    return workloads


def _pareto(draw: random.Random, most: float, load: float) -> list[Workload]:
    shape, shortest = draw.uniform(1.1, 2.0), most / draw.uniform(20, 100)
    workloads: list[Workload] = []
    for _ in range(STEPS):
        lengths = sorted(min(most, shortest * draw.paretovariate(shape)) for _ in range(int(load)))
        p95 = lengths[int(0.95 * (len(lengths) - 1))]
        workloads.append(Workload(statistics.mean(lengths), p95, lengths[-1], load))
    return workloads


def _pair(table: ProfileTable, draw: random.Random, most: float, load: float) -> tuple[Workload, Workload]:
    """Two workloads whose best layouts differ, and lose as much as possible with each other's; without any,
    two of different lengths."""
    lengths = [most / 1.3 / MOST_JUMP ** (power / (_LENGTHS - 1)) for power in range(_LENGTHS)]
    workloads = [_workload(length, 1.3 * length, load) for length in lengths]
    costs = [replay.cost(table, DEVICES, workload) for workload in workloads]
    best = [min(each.allowed, key=lambda replica: each.seconds[replica]) for each in costs]

    def loss(first: int, second: int) -> float:
        """The least that either loses with the other's best, over its own seconds, if memory allows that."""
        ways = ((first, second), (second, first))
        return min(costs[here].seconds[best[there]] / costs[here].best_s - 1 for here, there in ways)

    indices = range(_LENGTHS)
    pairs = [(long, short) for long in indices for short in range(long) if best[long] != best[short]]
    if not pairs:
        return workloads[0], workloads[draw.randrange(1, _LENGTHS)]
    ranked = sorted(pairs, key=lambda pair: -loss(*pair))
    first, second = draw.choice(ranked[: max(1, len(ranked) // 4)])
    return workloads[first], workloads[second]


def _spite(table: ProfileTable, pair: tuple[Workload, Workload], cost_ratio: float) -> list[TraceStep]:
    costs = [replay.cost(table, DEVICES, workload) for workload in pair]
    policy = EarlPolicy(table, cost_ratio * statistics.mean(each.best_s for each in costs))
    steps: list[TraceStep] = []
    for step in range(STEPS):
        replica = policy.decide(step, DEVICES).after.replica

        def loss(index: int, replica: tuple[int, ...] = replica) -> float:
            here = costs[index]
            return here.seconds[replica] / here.best_s if replica in here.allowed else float("inf")

        chosen = pair[max((0, 1), key=loss)]
        policy.observe(chosen)
        steps.append(TraceStep(step, chosen, DEVICES))
    return steps
