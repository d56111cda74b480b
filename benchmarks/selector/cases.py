"""The cases that policies are judged on: a table to decide by, a world that differs from it, a trace.

    seed, number ─► profile (what a user measured) ─► trace of a kind, its declared bound, a switch's cost
                            │
                            └─► the world: each cell of the profile off by up to NOISE, a machine that drifts

The policy has the profile, and what its own observations teach it. Seeds that the rules were tuned on and
seeds that they are judged on are apart.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from benchmarks.selector import generate, hard
from services.scheduler.profile.table import ProfileTable
from services.scheduler.selector import replay
from services.scheduler.selector.corrected_profile import LimitedTable
from services.scheduler.selector.trace import TraceStep

# Whoever changes a rule or a constant looks at these alone, and at the held-out ones only afterwards.
TUNING_SEEDS = tuple(range(8))
HELD_OUT_SEEDS = tuple(range(1000, 1010))

FAMILIES = {
    "friendly": generate.KINDS,
    "bursty": hard.BURSTY,
    "heavy-tailed": hard.HEAVY_TAILED,
    "adversarial": hard.ADVERSARIAL,
}
# A cell of the profile is off by up to this, as a fraction.
NOISE = 0.10
# At a run's end the machine has a throughput within these bounds, of that at its beginning: `earl bench
# profile` measured 0.78 and 0.95 within minutes. Each step differs by up to STEP_NOISE besides.
DRIFT_LEAST, DRIFT_MOST, STEP_NOISE = 0.78, 1.0, 0.03
# The declared bound of a length, over the trace's longest sequence: between 1 and this.
SLACK = 1.5
# A length or a load that grows by more at once is a jump.
JUMP = generate.GROWTH * (1 + 1e-9)


@dataclass(frozen=True, slots=True)
class Case:
    """One trace with what decides and what is so.

    table: what policies decide by, each with its own observations; it knows the bound that a user declares.
    exact: costs of each step where the world is as the profile has it; noisy: in the world.
    """

    seed: int
    number: int
    kind: str
    table: LimitedTable
    steps: list[TraceStep]
    switch_cost_s: float
    exact: list[replay.Cost]
    noisy: list[replay.Cost]

    @property
    def jumps(self) -> int:
        """Steps before which lengths or load grew by more than a policy has to expect."""
        loads = [step.workload for step in self.steps]
        return sum(
            after.max_tokens > JUMP * before.max_tokens or after.concurrency > JUMP * before.concurrency
            for before, after in pairwise(loads)
        )

    @property
    def held(self) -> bool:
        """Returns whether some layout holds every step."""
        return bool(frozenset.intersection(*(cost.fits for cost in self.exact)))


def case(seed: int, number: int, kind: str, most_steps: int = generate.STEPS) -> Case:
    """The case of a seed, a number of its table, and a kind of trace, of its first steps. Deterministic."""
    key = f"{seed}/{number}"
    table = generate.table(random.Random(key))
    draw = random.Random(f"{key}/{kind}")
    cost_ratio = 10 ** draw.uniform(-2.3, 0.0)
    if kind in generate.KINDS:
        steps = generate.trace(kind, table, draw)
    else:
        steps = hard.trace(kind, table, draw, cost_ratio)
    steps = steps[:most_steps]
    exact = replay.costs_of(table, steps)
    world_draw = random.Random(f"{key}/{kind}/world")
    world = noisy_table(table, world_draw)
    paces = drift(world_draw, len(steps))
    noisy = [slowed(cost, pace) for cost, pace in zip(replay.costs_of(world, steps), paces, strict=True)]
    cost_s = statistics.mean(cost.best_s for cost in exact) * cost_ratio
    longest, most = bound_of(table, steps, draw)
    limited = LimitedTable(table.rows, table.stage, longest=longest, most=most)
    return Case(seed, number, kind, limited, steps, cost_s, exact, noisy)


def bound_of(table: ProfileTable, steps: Sequence[TraceStep], draw: random.Random) -> tuple[float, float]:
    """The bound that a user declares who does not know the trace.

    The pool's sequences, and a length that is 1 to SLACK times the trace's longest, but not more than some
    layout holds.
    """
    longest = max(step.workload.max_tokens for step in steps)
    most = max(step.workload.concurrency for step in steps)
    return max(longest, min(longest * draw.uniform(1.0, SLACK), generate.limit(table, most))), most


def noisy_table(table: ProfileTable, draw: random.Random) -> ProfileTable:
    """The table with each throughput off by up to NOISE; what fits stays as it is."""
    rows = [
        replace(row, tokens_per_device_s=row.tokens_per_device_s * draw.uniform(1 - NOISE, 1 + NOISE))
        if row.tokens_per_device_s is not None
        else row
        for row in table.rows
    ]
    return ProfileTable(rows, table.stage)


def drift(draw: random.Random, steps: int) -> list[float]:
    """The machine's throughput at each step, over that at the beginning."""
    end = draw.uniform(DRIFT_LEAST, DRIFT_MOST)
    return [
        end ** (step / max(1, steps - 1)) * draw.uniform(1 - STEP_NOISE, 1 + STEP_NOISE)
        for step in range(steps)
    ]


def slowed(cost: replay.Cost, pace: float) -> replay.Cost:
    return replay.Cost({replica: seconds / pace for replica, seconds in cost.seconds.items()}, cost.fits)
