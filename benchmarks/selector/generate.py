"""Profiles and traces to judge policies on: physics with random numbers, no table of ours. Deterministic.

Small tp wins where contexts are short, for it waits for no collectives; large tp where they are long, for it
shares the work of the longest; and only large tp has room for long contexts at high load. Where the borders
lie and how much the choice matters is drawn again for each table.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from earl.parallelism import Parallelism
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import ProfileTable
from services.scheduler.selector.candidate_scores import best, weigh
from services.scheduler.selector.decision import Workload
from services.scheduler.selector.trace import TraceStep

DEVICES = 8
STEPS = 120
GROWTH = 1.25
_MOST_LOAD = 192.0
KINDS = ("growth", "bursts", "oscillation", "load")


@dataclass(frozen=True, slots=True)
class Physics:
    """The needs of a device and a model, in seconds and in fractions of a device's memory.

    A step of B sequences on a replica of tp devices waits for the weights (`weights_s` / tp), for attention
    over the longest sequence, which no other sequence's work hides (`tail_s` a token / tp), computes
    (`compute_s` B / tp), reads KV (`kv_s` B L / tp), and for tp > 1 waits for its collectives
    (`latency_s` log2 tp + `exchange_s` B).
    """

    weights: float
    kv_token: float
    weights_s: float
    tail_s: float
    compute_s: float
    kv_s: float
    latency_s: float
    exchange_s: float

    @classmethod
    def drawn(cls, random: random.Random) -> Physics:
        weights = random.uniform(0.15, 0.85)
        # At this length, 64 sequences fill the memory at tp 1.
        full_tokens = 2 ** random.uniform(11.0, 16.0)
        # A doubling of tp costs some 3 to 40 % of throughput, the more the fewer sequences there are.
        latency_s = random.uniform(0.2, 0.6)
        # At this length, tp 2 and tp 1 are about equally quick; some tables end before it.
        even_tokens = 2 ** random.uniform(11.0, 19.0)
        weights_s = random.uniform(0.0, 1.2) * latency_s
        return cls(
            weights=weights,
            kv_token=(1 - weights) / (full_tokens * 64 / DEVICES),
            weights_s=weights_s,
            tail_s=(2 * latency_s - weights_s) / even_tokens,
            compute_s=random.uniform(0.25, 1.0),
            kv_s=random.uniform(0.25, 1.0) / min(even_tokens, 32_768),
            latency_s=latency_s,
            exchange_s=random.uniform(0.0, 0.02),
        )

    def memory(self, tp: int, context: float, concurrency: float) -> float:
        """Fraction of a device's memory."""
        sequences = math.ceil(concurrency * tp / DEVICES)
        return (self.weights + sequences * context * self.kv_token) / tp

    def rate(self, tp: int, context: float, concurrency: float) -> float:
        """Tokens a second and device."""
        sequences = concurrency * tp / DEVICES
        step_s = self.weights_s + self.tail_s * context + sequences * (self.compute_s + self.kv_s * context)
        step_s = step_s / tp + (self.latency_s * math.log2(tp) + sequences / tp * self.exchange_s * (tp - 1))
        return sequences / step_s / tp


def table(
    random: random.Random, contexts: Sequence[int] = (), loads: Sequence[int] = (16, 64, 256)
) -> ProfileTable:
    """A generated profile of tp 1, 2, 4, 8 on 8 devices, with memory fractions or with "oom" alone.

    contexts: lengths in tokens; by default eight, each twice the one before.
    """
    physics = Physics.drawn(random)
    with_memory = random.random() < 0.5
    first = 512 * 2 ** random.random()
    contexts = contexts or [round(first * 2**n) for n in range(8)]
    rows = []
    for tp in (1, 2, 4, 8):
        for context in contexts:
            for concurrency in loads:
                fraction = physics.memory(tp, context, concurrency)
                fits = fraction <= 1
                rows.append(
                    ProfileRow(
                        "rollout",
                        Parallelism(DEVICES // tp, tp),
                        context,
                        concurrency,
                        physics.rate(tp, context, concurrency) if fits else None,
                        fraction if with_memory and fits else None,
                        oom=not fits,
                    )
                )
    return ProfileTable(rows, "rollout")


def trace(kind: str, table: ProfileTable, random: random.Random) -> list[TraceStep]:
    """STEPS steps in which neither lengths nor load ever grow by more than GROWTH at once."""
    spread = random.uniform(1.3, 2.5)
    load = random.choice([16.0, 32.0, 64.0, 128.0])
    most = limit(table, _MOST_LOAD if kind == "load" else load)
    if kind == "growth":
        means, loads = _growth(random, most / spread), [load] * STEPS
    elif kind == "bursts":
        means, loads = _bursts(random, most / spread), [load] * STEPS
    elif kind == "oscillation":
        means, loads = _oscillation(random, table, spread, load), [load] * STEPS
    else:
        means, loads = _growth(random, most / spread), _swings(random)
    steps: list[TraceStep] = []
    longest = means[0] * spread
    concurrency = round(loads[0])
    for step, (mean, target_load) in enumerate(zip(means, loads, strict=True)):
        longest = min(mean * spread * random.uniform(0.95, 1.05), longest * GROWTH, most)
        concurrency = min(round(target_load), math.floor(concurrency * GROWTH))
        workload = Workload(min(mean, longest), min(mean * 1.2, longest), longest, concurrency)
        while not any(candidate.fits for candidate in weigh(table, DEVICES, workload)):
            longest *= 0.9
            workload = Workload(min(mean, longest), min(mean * 1.2, longest), longest, concurrency)
        steps.append(TraceStep(step, workload, DEVICES))
    return steps


def limit(table: ProfileTable, load: float) -> float:
    """The longest length in tokens of traces: a tenth short of where nothing fits, or the table ends."""
    high = table.extent[0]
    while not any(candidate.fits for candidate in weigh(table, DEVICES, Workload(high, high, high, load))):
        high /= 1.05
    return high / 1.1


def boundaries(table: ProfileTable, spread: float, load: float) -> list[float]:
    """Mean lengths in tokens at which the best changes: by the table, and by its ranges of lengths."""
    most = limit(table, load)
    contexts = sorted({row.context_tokens for row in table.rows})
    ends = [
        best(weigh(table, DEVICES, Workload(context, context, context, load))).parallelism
        for context in contexts
    ]
    means = [
        context for context, here, there in zip(contexts, ends, ends[1:], strict=False)
        if here != there and context * spread < most
    ]  # fmt: skip
    before = None
    low, high = math.log(contexts[0]), math.log(most / spread)
    for point in range(200):
        mean = math.exp(low + (high - low) * point / 199)
        now = best(weigh(table, DEVICES, Workload(mean, mean, mean * spread, load))).parallelism
        if before is not None and now != before:
            means.append(mean)
        before = now
    return means


def _growth(random: random.Random, most: float, steps: int = STEPS) -> list[float]:
    """From a 16th to a 48th of `most` up to it: some steps by much, most by little, some back."""
    paces = [random.expovariate(1.0) ** 2 for _ in range(steps)]
    whole = math.log(random.uniform(16, 48))
    ways = [min(whole * pace / sum(paces), math.log(1.2)) for pace in paces]
    mean = most / math.exp(sum(ways))
    means = []
    for way in ways:
        means.append(mean * random.uniform(0.98, 1.0))
        mean *= math.exp(way)
    return means


def _bursts(random: random.Random, most: float) -> list[float]:
    base, mean, left = most / random.uniform(6, 30), 0.0, 0
    means: list[float] = []
    mean = base
    for _ in range(STEPS):
        means.append(mean)
        if left:
            left -= 1
            mean = min(mean * random.uniform(1.1, 1.2), most)
        elif mean > base * 1.3 and random.random() < 0.4:
            mean = base * random.uniform(0.95, 1.05)
        elif random.random() < 0.08:
            left = random.randint(2, 6)
        else:
            mean *= random.uniform(0.97, 1.03)
    return means


def _oscillation(random: random.Random, table: ProfileTable, spread: float, load: float) -> list[float]:
    means = boundaries(table, spread, load)
    middle = random.choice(means) if means else table.extent[0] / spread / 4
    swing, period, phase = random.uniform(0.03, 0.15), random.uniform(3, 12), random.uniform(0, 6.3)
    return [
        middle * (1 + swing * math.sin(2 * math.pi * step / period + phase)) * random.uniform(0.98, 1.02)
        for step in range(STEPS)
    ]


def _swings(random: random.Random) -> list[float]:
    low, high = 16.0, random.choice([48.0, 96.0, _MOST_LOAD])
    period = random.uniform(20, 60)
    return [
        math.exp(math.log(low) + (math.log(high / low)) * (0.5 - 0.5 * math.cos(2 * math.pi * step / period)))
        for step in range(STEPS)
    ]
