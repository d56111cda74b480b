"""Sequences in flight while the engines under them are replaced, against the same sequences left alone.

prompts ─► pool, tp 1 ─► tokens … tp 2 … tp 4 … tp 2 … tp 1 … tokens    (switched)
prompts ─► pool, tp 1 ─► tokens                                         (unswitched, before)
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

from benchmarks.children import MeasurementWrong
from benchmarks.record.progress import phase
from benchmarks.reparallelize.model import RUN, Published
from earl.config.scheduler import SwitchDeadlines
from earl.errors import EarlError
from earl.models.spec import ModelSpec, load_spec
from earl.obs.memory import available_bytes
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchCommand, SwitchOutcome
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.process.client import EngineProcess
from services.rollout.engines.process.rank_process import RankKind
from services.rollout.pool.devices import PoolDevices
from services.rollout.pool.pool import EnginePool
from services.rollout.pool.replicas import Publication
from services.rollout.pool.standby import StandbyProcesses

# Two greedy tokens whose log-probs are closer are a tie: rounding decides between them.
TIE = 1e-4
LOAD_S, START_S, PREFILL_S = 120.0, 300.0, 600.0
DEADLINES = SwitchDeadlines(prepare_s=120.0, quiesce_s=120.0, switch_s=120.0, verify_s=120.0)
# Between two switches every engine makes so many steps, in DECODE_S at most: they time a decode step.
DECODE_STEPS, DECODE_S, POLL_S = 16, 30.0, 0.25
# A stall may last so many decode steps of the batch and so many milliseconds; so many stalls are judged.
GOAL_STEPS, GOAL_MS, GOAL_STALLS = 2, 60.0, 100


@dataclass(frozen=True, slots=True)
class SwitchWork:
    """Sequences of prompt_tokens each, in turns of turn_tokens, at most new_tokens of each.

    tp_values: values of tp in turn. engines: instead of them, numbers of engines in turn, all of tp 1 and on
    one device. slots: sequences that each engine holds; 0: as many as there are, or its part of them.
    pause_s: between two turns of a sequence, as a tool call takes.
    """

    sequences: int
    prompt_tokens: int
    new_tokens: int
    turn_tokens: int
    tp_values: tuple[int, ...]
    engine: str = "torch"
    threads: int = 1
    # The old engines stop before the new ones start.
    cold: bool = False
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    engines: tuple[int, ...] = ()
    slots: int = 0
    pause_s: float = 0.0
    # Keeps a process ready for each device, as a run does in which the selector switches.
    standby: bool = True

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.new_tokens

    @property
    def parallelisms(self) -> tuple[Parallelism, ...]:
        """The parallelisms in turn; the pool begins in the first."""
        if self.engines:
            return tuple(Parallelism(count, 1) for count in self.engines)
        devices = max(self.tp_values)
        return tuple(Parallelism(devices // tp, tp) for tp in self.tp_values)


class SharedDevice(PoolDevices):
    """One device, on which any number of engines of tp 1 may be: a switch changes how many there are."""

    def check(self, parallelism: Parallelism) -> None:
        if parallelism.tp != 1 or parallelism.cp != 1 or parallelism.pp != 1:
            PoolDevices.check(self, parallelism)


@dataclass(slots=True)
class Sequence:
    """A sequence's prompt and what was sampled for it, turn after turn of one session."""

    number: int
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stalls_s: list[float] = field(default_factory=list)
    # The error that ended it early; empty if none did.
    lost: str = ""

    async def turn(self, pool: EnginePool, run: str, new_tokens: int) -> None:
        made = await pool.generate(
            GenerateRequest(
                request_id=f"{run} {self.number} {len(self.ids)}",
                ids=self.prompt + self.ids,
                max_new_tokens=new_tokens,
                temperature=0.0,
                session=f"{run} {self.number}",
            )
        )
        self.ids += made.ids
        self.logprobs += made.logprobs
        self.stalls_s += made.stalls_s


async def measure(work: SwitchWork, model: Path, weights: Published) -> dict[str, Any]:
    """Figures of a switched run, with the unswitched one that it is compared to."""
    first = work.parallelisms[0]
    share = work.sequences if work.engines else -(-work.sequences // first.dp)
    phase("starting the engines")
    base = EngineSpec(
        name="bench",
        model_dir=str(model),
        engine=work.engine,
        device=work.device,
        tp=first.tp,
        threads=work.threads,
        dtype=work.dtype,
        max_sequences=work.slots or share,
        max_context_tokens=work.context_tokens,
        load_initial=False,
        redis_url=weights.redis_url,
        run=RUN,
        data_plane=weights.data_plane,
        arena_dir=str(weights.arena_dir),
        start_s=START_S,
    )
    spec = load_spec(str(model))
    prompts = _prompts(work, spec)
    pool_devices = (
        SharedDevice(base, first.dp, spec, shared_gpus=1)
        if work.engines
        else PoolDevices(base, first.dp, spec)
    )
    # A switch is cold where no memory is free beside the old engines.
    free_bytes = (lambda: 0) if work.cold else available_bytes
    standby = StandbyProcesses(RankKind.of(base), first.devices if work.standby else 0)
    pool = EnginePool(
        pool_devices,
        partial(EngineProcess, take=standby.take),
        restarts=0,
        load_s=LOAD_S,
        free_bytes=free_bytes,
        standby=standby,
    )
    await pool.start()
    try:
        await pool.load(Publication(1, weights.version, weights.keys))
        await standby.filled(START_S)
        standby_bytes = sum(psutil.Process(pid).memory_full_info().pss for pid in standby.pids)
        switched, reports, decode_ms = await _switched(pool, standby, work, prompts)
        _say(f"unswitched, {max(len(sequence.ids) for sequence in switched)} tokens")
        alone = [Sequence(number, ids) for number, ids in enumerate(prompts)]
        phase("the same sequences, unswitched")
        await asyncio.gather(
            *(
                sequence.turn(pool, "alone", len(other.ids))
                for sequence, other in zip(alone, switched, strict=True)
            )
        )
    finally:
        await pool.stop()
    standby_mib = round(standby_bytes / (1 << 20), 1)
    return figures(work, alone, switched, reports, decode_ms) | {"standby_mib": standby_mib}


def _prompts(work: SwitchWork, spec: ModelSpec) -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, spec.vocab, work.prompt_tokens).tolist() for _ in range(work.sequences)]


async def _switched(
    pool: EnginePool, standby: StandbyProcesses, work: SwitchWork, prompts: list[list[int]]
) -> tuple[list[Sequence], list[SwitchOutcome], list[float]]:
    """Sequences that are generated until the last switch has ended, the outcomes of the switches, and the
    milliseconds of a decode step before, between and after them."""
    sequences = [Sequence(number, ids) for number, ids in enumerate(prompts)]
    switches_ended = asyncio.Event()
    begun = [asyncio.Event() for _ in sequences]

    async def generate(sequence: Sequence) -> None:
        try:
            await sequence.turn(pool, "switched", 1)
            begun[sequence.number].set()
            while not switches_ended.is_set() and len(sequence.ids) + work.turn_tokens <= work.new_tokens:
                await sequence.turn(pool, "switched", work.turn_tokens)
                await asyncio.sleep(work.pause_s)
            await pool.release(f"switched {sequence.number}")
        except EarlError as error:
            sequence.lost = str(error)
            _say(f"sequence {sequence.number} is lost: {error}")

    phase("prefill of all sequences")
    generating = asyncio.gather(*(generate(sequence) for sequence in sequences))
    try:
        async with asyncio.timeout(PREFILL_S):
            await asyncio.gather(*(event.wait() for event in begun))
        switches = work.parallelisms[1:]
        phase("switches", 0, len(switches))
        reports, decode_ms = [], await _decode_ms(pool)
        for epoch, parallelism in enumerate(switches, start=1):
            reports.append(await pool.reparallelize(SwitchCommand(epoch, parallelism, DEADLINES)))
            _say(f"{parallelism}: {reports[-1]}")
            phase("switches", epoch, len(switches))
            await standby.filled(START_S)
            decode_ms += await _decode_ms(pool)
        if generating.done():
            raise MeasurementWrong(
                f"every sequence of {work.new_tokens} tokens had ended before the last switch",
                "raise --new-tokens",
            )
        switches_ended.set()
        await generating
    finally:
        generating.cancel()
    return sequences, reports, decode_ms


async def _decode_ms(pool: EnginePool) -> list[float]:
    """Mean milliseconds of a step in which sequences decode and no switch runs, over the pool's engines;
    empty if an engine makes fewer than DECODE_STEPS in DECODE_S."""
    before = [stats for stats in await pool.stats() if stats is not None]
    with suppress(TimeoutError):
        async with asyncio.timeout(DECODE_S):
            while True:
                await asyncio.sleep(POLL_S)
                after = [stats for stats in await pool.stats() if stats is not None]
                pairs = list(zip(before, after, strict=True))
                if pairs and all(new.steps - old.steps >= DECODE_STEPS for old, new in pairs):
                    steps_ms = [
                        1e3 * (new.step_s - old.step_s) / (new.steps - old.steps) for old, new in pairs
                    ]
                    return [statistics.mean(steps_ms)]
    return []


def figures(
    work: SwitchWork,
    alone: list[Sequence],
    switched: list[Sequence],
    reports: list[SwitchOutcome],
    decode_ms: list[float],
) -> dict[str, Any]:
    """Returns what the switches cost, and whether the switched sequences differ from the others.

    decode_ms: milliseconds of a decode step, before, between and after the switches.
    """
    stalls = sorted(1e3 * stall for sequence in switched for stall in sequence.stalls_s)
    seconds = [report.seconds for report in reports]
    compared = [compare(a, b) for a, b in zip(alone, switched, strict=True)]
    stalled = "live_ms" if work.engine == "torch" else f"{work.engine}_stall_ms"
    p99_ms = round(stalls[max(0, -(-len(stalls) * 99 // 100) - 1)], 1) if stalls else None
    return {
        "engine": work.engine,
        "cold": work.cold,
        "sequences": work.sequences,
        "prompt_tokens": work.prompt_tokens,
        "new_tokens": [
            min(len(sequence.ids) for sequence in switched),
            max(len(sequence.ids) for sequence in switched),
        ],
        "cuts": list(work.tp_values),
        **({"engines": list(work.engines)} if work.engines else {}),
        "standby": work.standby,
        "switch_s_median": round(statistics.median(seconds), 2) if seconds else None,
        "switch_s_worst": round(max(seconds), 2) if seconds else None,
        "stalls": len(stalls),
        f"{stalled}_p50": round(statistics.median(stalls), 1) if stalls else None,
        f"{stalled}_p99": p99_ms,
        **(_live_goal(p99_ms, len(stalls), decode_ms) if work.engine == "torch" else {}),
        "switch_cost_engine_s": round(_competing_engine_s(work, reports), 2),
        "lost_sequences": sum(bool(sequence.lost) for sequence in switched),
        "rolled_back": sum(report.rolled_back for report in reports),
        "token_exact": all(pair.exact for pair in compared),
        "ties": sum(pair.tie for pair in compared),
        "max_logprob_diff": max(pair.logprob_difference for pair in compared),
        "switches": [asdict(report) | {"parallelism": str(report.parallelism)} for report in reports],
    }


def _live_goal(p99_ms: float | None, stalls: int, decode_ms: list[float]) -> dict[str, Any]:
    """The longest stall that is allowed, by the batch's decode step in this run, and whether it was kept;
    that is None if too few stalls or steps were measured."""
    if not decode_ms or p99_ms is None:
        return {"decode_ms": None, "live_goal_ms": None, "live_goal_met": None}
    goal_ms = GOAL_STEPS * statistics.median(decode_ms) + GOAL_MS
    return {
        "decode_ms": round(statistics.median(decode_ms), 1),
        "decode_ms_each": [round(step_ms, 1) for step_ms in decode_ms],
        "live_goal_ms": round(goal_ms, 1),
        "live_goal_met": p99_ms <= goal_ms if stalls >= GOAL_STALLS else None,
    }


def _competing_engine_s(work: SwitchWork, reports: list[SwitchOutcome]) -> float:
    """Seconds in which new engines competed with those that generated, times how many these were."""
    before = [parallelism.dp for parallelism in work.parallelisms]
    return sum(report.competing_s * engines for report, engines in zip(reports, before, strict=False))


@dataclass(frozen=True, slots=True)
class ComparedSequences:
    """exact: the same tokens, or the same until a tie. logprob_difference: of the tokens they share."""

    exact: bool
    tie: bool
    logprob_difference: float


def compare(alone: Sequence, switched: Sequence) -> ComparedSequences:
    a, b = np.array(alone.ids), np.array(switched.ids)
    length = min(len(a), len(b))
    apart = np.flatnonzero(a[:length] != b[:length])
    same = int(apart[0]) if len(apart) else length
    logprobs = np.abs(np.array(alone.logprobs[:same]) - np.array(switched.logprobs[:same]))
    difference = float(logprobs.max()) if same else 0.0
    if not len(apart):
        return ComparedSequences(len(a) == len(b), False, difference)
    tie = abs(alone.logprobs[same] - switched.logprobs[same]) < TIE
    return ComparedSequences(tie, tie, difference)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
