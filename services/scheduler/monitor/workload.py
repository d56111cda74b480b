"""The run's workload, step by step: lengths, load, KV, memory, throughput, trend. Pure: time is an argument.

    accepted episode ─► lengths ┐
    leased, reported ─► load    ├─ step ─► an ObservedWorkload for each stage
    heartbeat ─► KV, memory     │
    committed batch ────────────┘

Rollout's step is what was played since the commit before; that of trainer and reference stage is the batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import combinations
from statistics import median

from earl.parallelism import REFERENCE, ROLLOUT, TRAINER, Parallelism
from services.scheduler.monitor.length_sketch import LengthSketch, Quantiles
from services.scheduler.monitor.worker_counters import WorkerCounters
from services.scheduler.monitor.workers import stage_parallelism
from services.scheduler.selector.decision import Workload
from services.scheduler.state.workers import WorkerRecord

# Steps that the trend is taken over.
TREND_STEPS = 16
# What remains of the weight of former lengths after a training step.
FADE = 0.5


class LengthMonitor:
    """Lengths of recent episodes and turns; each training step reduces the weight of the past to FADE."""

    def __init__(self) -> None:
        self.episodes = LengthSketch()
        self.turns = LengthSketch()

    def observe(self, total_tokens: int, turn_tokens: Sequence[int]) -> None:
        """Counts one accepted trajectory."""
        self.episodes.add(total_tokens)
        for tokens in turn_tokens:
            self.turns.add(tokens)

    def step(self) -> None:
        """A training step has ended."""
        self.episodes.decay(FADE)
        self.turns.decay(FADE)


@dataclass(frozen=True, slots=True)
class Levels:
    """A number over a time: its mean while it was above 0, its maximum, and the seconds above 0."""

    mean: float = 0.0
    most: float = 0.0
    seconds: float = 0.0


class Level:
    """A number that changes now and then, with its time average and maximum."""

    def __init__(self) -> None:
        self._value = 0.0
        self._since_s = 0.0
        self._area = self._busy_s = self._most = 0.0

    @property
    def value(self) -> float:
        return self._value

    def set(self, value: float, now_s: float) -> None:
        """Changes the value as of `now_s`."""
        self._pass(now_s)
        self._value = value
        self._most = max(self._most, value)

    def take(self, now_s: float) -> Levels:
        """Returns mean and maximum since the last call, and starts anew."""
        self._pass(now_s)
        mean = self._area / self._busy_s if self._busy_s > 0 else self._most
        taken = Levels(mean, self._most, self._busy_s)
        self._area = self._busy_s = 0.0
        self._most = self._value
        return taken

    def _pass(self, now_s: float) -> None:
        if self._value > 0:
            elapsed_s = max(0.0, now_s - self._since_s)
            self._area += self._value * elapsed_s
            self._busy_s += elapsed_s
        self._since_s = now_s


@dataclass(frozen=True, slots=True)
class KvUse:
    """Tokens of KV in all engines of a pool: in use, taking memory, and what they hold at most."""

    used_tokens: float = 0.0
    committed_tokens: float = 0.0
    total_tokens: float = 0.0

    @property
    def used_fraction(self) -> float:
        return self.used_tokens / self.total_tokens if self.total_tokens > 0 else 0.0


@dataclass(frozen=True, slots=True)
class DoneWork:
    """The batches that the sequences which ended in a step are part of, and the device-seconds of rollout in
    it: those in which engines generated, if they have `reported` them, else all while sequences were played.
    there_s: device-seconds in which there were devices, 0 if nobody counted them.
    """

    batches: float
    device_s: float
    reported: bool = True
    there_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ObservedWorkload:
    """The workload of one stage in one step; None where no worker reported it.

    concurrency_most: the maximum, where the workload has the mean. tokens_per_device_s: of the sequences'
    tokens, while there were any. memory_fraction: of the fullest device; kv: of all engines, each worker's at
    its fullest. done: of rollout.
    """

    workload: Workload
    concurrency_most: float
    tokens_per_device_s: float | None = None
    memory_fraction: float | None = None
    kv: KvUse | None = None
    done: DoneWork | None = None


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One committed step, by stage: its parallelism, and what it did; lengths of recent episodes.

    growth: of the mean episode length a step, 0.02 for 2 %.
    """

    running: Mapping[str, Parallelism]
    stages: Mapping[str, ObservedWorkload]
    growth: float
    episodes: Quantiles
    turns: Quantiles


class Monitor:
    """Measures each stage's workload. Fed by the control loop; `step` returns the selector's figures."""

    def __init__(self) -> None:
        self.lengths = LengthMonitor()
        self.counters = WorkerCounters()
        self._playing = Level()
        # Levels of the last step in which anything was played.
        self._busy = Levels()
        self._played = _Played()
        self._means: deque[float] = deque(maxlen=TREND_STEPS)
        # By stage and worker, from the last heartbeat; of rollout workers also their use of KV.
        self._gauges: dict[str, dict[str, Mapping[str, float]]] = {}
        self._kv_reported: dict[str, KvUse] = {}
        # Devices of rollout.
        self._devices = Level()
        # By rollout worker, its incarnation and the device-seconds that it had generated for at its last
        # heartbeat; and of all workers since the step before.
        self._busy_reported: dict[str, tuple[int, float]] = {}
        self._busy_device_s = 0.0
        # By stage, and by rollout worker, the highest of this step.
        self._memory: dict[str, float] = {}
        self._kv: dict[str, KvUse] = {}

    def observe(self, total_tokens: int, turn_tokens: Sequence[int], batch_part: float = 0.0) -> None:
        """Records the lengths of one accepted trajectory, and which part of a batch it is."""
        self.lengths.observe(total_tokens, turn_tokens)
        self._played.add(total_tokens, batch_part)

    def playing(self, sequences: int, now_s: float) -> None:
        """Records that so many sequences are leased as of `now_s`: one for each seat of an episode, since
        engines hold the context of each."""
        self._playing.set(sequences, now_s)

    def devices(self, count: int, now_s: float) -> None:
        """Records that all rollout workers have so many devices as of `now_s`."""
        self._devices.set(count, now_s)

    def reported(self, stage: str, worker: str, gauges: Mapping[str, float], incarnation: int) -> None:
        """Records the gauges of a worker's heartbeat. incarnation: which of its lives reported them."""
        self._gauges.setdefault(stage, {})[worker] = gauges
        self.counters.reported(worker, incarnation, gauges)
        if "memory_fraction" in gauges:
            self._memory[stage] = max(self._memory.get(stage, 0.0), gauges["memory_fraction"])
        if stage == ROLLOUT:
            if (busy_s := gauges.get("busy_device_s")) is not None:
                # A worker that began again counts from 0; of one that is new here the past does not count.
                life, known_s = self._busy_reported.get(worker, (incarnation, busy_s))
                self._busy_device_s += busy_s - known_s if life == incarnation else busy_s
                self._busy_reported[worker] = incarnation, busy_s
            kv, before = _kv_of(gauges), self._kv.get(worker)
            self._kv_reported.pop(worker, None)
            if kv is not None:
                self._kv_reported[worker] = kv
                if before is None or kv.used_tokens >= before.used_tokens:
                    self._kv[worker] = kv

    @property
    def blocked_tokens(self) -> float:
        """The longest sequence that waits because no engine of its worker can hold it; 0 if none does."""
        gauges = self._gauges.get(ROLLOUT, {}).values()
        return max((known.get("blocked_context_tokens", 0.0) for known in gauges), default=0.0)

    def remember(self, mean_tokens: float) -> None:
        """The mean episode length of a step before this scheduler's time."""
        self._means.append(mean_tokens)

    def step(
        self,
        *,
        workers: Collection[WorkerRecord],
        device_slots: float,
        batch_tokens: Sequence[int],
        trainer: Mapping[str, float],
        now_s: float,
        reference_tokens: Sequence[int] | None = None,
        replayed_tokens: Sequence[int] = (),
    ) -> StepFigures:
        """A training step is committed: what it was, and the next begins.

        workers: who takes part. device_slots: sequences that engines hold for each of their devices; what is
        leased beyond those of all waits. batch_tokens: lengths of the batch's trajectories;
        reference_tokens: of those that the reference stage reads, None for all; replayed_tokens: of those
        that the trainer alone had, once more. trainer: its report on the batch, of all its ranks.
        """
        self._forget({worker.name for worker in workers})
        running = stage_parallelism(workers)
        playing, played, self._played = self._playing.take(now_s), self._played, _Played()
        devices = self._devices.take(now_s)
        observed: dict[str, ObservedWorkload] = {}
        batch = _workload_of(batch_tokens) if batch_tokens else None
        # Where hardly anything ended: recent episodes; at first, what the batch holds.
        enough = 2 * played.count >= max(1, len(batch_tokens))
        lengths = played.lengths if enough else None
        lengths = lengths or _lengths_of(self.lengths.episodes.summary())
        lengths = lengths or (batch and (batch.mean_tokens, batch.p95_tokens, batch.max_tokens))
        self._busy = playing if playing.seconds > 0 else self._busy
        if ROLLOUT in running and lengths is not None:
            parallelism = running[ROLLOUT]
            slots = device_slots * parallelism.devices
            mean, most = (max(1.0, min(sequences, slots)) for sequences in (self._busy.mean, self._busy.most))
            rate = played.tokens / playing.seconds if enough and playing.seconds > 0 else None
            workload = Workload(lengths[0], lengths[1], max(lengths[2], self.blocked_tokens), mean)
            reported = bool(self._busy_reported)
            busy_s = self._busy_device_s if reported else playing.seconds * parallelism.devices
            done = DoneWork(played.batches, busy_s, reported, devices.mean * devices.seconds)
            observed[ROLLOUT] = replace(self._observed(ROLLOUT, workload, most, rate, parallelism), done=done)
            self._means.append(lengths[0])
        if batch is not None:
            if "memory_fraction" in trainer:
                self._memory[TRAINER] = max(self._memory.get(TRAINER, 0.0), trainer["memory_fraction"])
            rates = {
                TRAINER: trainer.get("train_tokens_per_s"),
                REFERENCE: self._sum(REFERENCE, "tokens_per_s"),
            }
            read = batch_tokens if reference_tokens is None else reference_tokens
            trained = _workload_of([*batch_tokens, *replayed_tokens])
            batches = {TRAINER: trained, REFERENCE: _workload_of(read) if read else None}
            for stage in rates.keys() & running.keys():
                work = batches[stage]
                if work is not None:
                    load = work.concurrency
                    observed[stage] = self._observed(stage, work, load, rates[stage], running[stage])
        episodes, turns = self.lengths.episodes.summary(), self.lengths.turns.summary()
        self.lengths.step()
        self._begin()
        return StepFigures(running, observed, growth(self._means), episodes, turns)

    def glance(self, workers: Collection[WorkerRecord], device_slots: float) -> StepFigures | None:
        """Returns the workload of rollout between two commits, as far as known; None while its workers
        differ.
        """
        running = stage_parallelism(workers)
        blocked = self.blocked_tokens
        episodes = self.lengths.episodes.summary()
        lengths = _lengths_of(episodes) or (blocked, blocked, blocked)
        if ROLLOUT not in running or not lengths[2]:
            return None
        parallelism = running[ROLLOUT]
        load = max(1.0, min(self._busy.mean or self._playing.value, device_slots * parallelism.devices))
        workload = Workload(lengths[0], lengths[1], max(lengths[2], blocked), load)
        observed = {ROLLOUT: self._observed(ROLLOUT, workload, load, None, parallelism)}
        return StepFigures(running, observed, growth(self._means), episodes, self.lengths.turns.summary())

    def _forget(self, names: set[str]) -> None:
        """Drops the reports of workers that no longer take part."""
        for workers in (self._kv_reported, self._busy_reported, *self._gauges.values()):
            for name in workers.keys() - names:
                del workers[name]

    def _begin(self) -> None:
        """Starts the maxima of the next step with the last reported values, and its sums with 0."""
        self._busy_device_s = 0.0
        self._kv = dict(self._kv_reported)
        for stage, workers in self._gauges.items():
            known = [gauges["memory_fraction"] for gauges in workers.values() if "memory_fraction" in gauges]
            self._memory.pop(stage, None)
            if known:
                self._memory[stage] = max(known)

    def _observed(
        self, stage: str, workload: Workload, most: float, rate: float | None, parallelism: Parallelism
    ) -> ObservedWorkload:
        return ObservedWorkload(
            workload,
            max(most, workload.concurrency),
            rate / parallelism.devices if rate is not None else None,
            self._memory.get(stage),
            _together(self._kv.values()) if stage == ROLLOUT else None,
        )

    def _sum(self, stage: str, gauge: str) -> float | None:
        known = [gauges[gauge] for gauges in self._gauges.get(stage, {}).values() if gauge in gauges]
        return sum(known) if known else None


class _Played:
    """Episodes of one step: quantiles as in the sketch, sums and maximum exactly."""

    def __init__(self) -> None:
        self._sketch = LengthSketch()
        self.count = self.tokens = 0
        self.batches = 0.0
        self._most = 0

    def add(self, tokens: int, batch_part: float) -> None:
        self._sketch.add(tokens)
        self.count += 1
        self.tokens += tokens
        self.batches += batch_part
        self._most = max(self._most, tokens)

    @property
    def lengths(self) -> tuple[float, float, float] | None:
        """(mean, 95th percentile, maximum) in tokens; None if there were none."""
        if self._most == 0:
            return None
        summary = self._sketch.summary()
        return summary.mean, min(summary.p95, float(self._most)), float(self._most)


def _kv_of(gauges: Mapping[str, float]) -> KvUse | None:
    """Reads a rollout worker's KV use from its gauges; None if they lack it."""
    if not gauges.get("kv_tokens"):
        return None
    used, committed = gauges.get("kv_used_tokens", 0.0), gauges.get("kv_committed_tokens", 0.0)
    return KvUse(used, committed, gauges["kv_tokens"])


def _together(parts: Collection[KvUse]) -> KvUse | None:
    if not parts:
        return None
    return KvUse(*map(sum, zip(*map(astuple, parts), strict=True)))


def _workload_of(batch_tokens: Sequence[int]) -> Workload:
    ordered = sorted(batch_tokens)
    count = len(ordered)
    p95 = ordered[math.ceil(0.95 * count) - 1]
    return Workload(sum(ordered) / count, float(p95), float(ordered[-1]), float(count))


def _lengths_of(summary: Quantiles) -> tuple[float, float, float] | None:
    return (summary.mean, summary.p95, summary.max) if summary.max > 0 else None


def growth(means: Sequence[float]) -> float:
    """Growth a step of a series of means > 0, oldest first, as a fraction; 0 below two.

    The median of the slopes of all pairs in log length (Theil 1950, Sen 1968): nearly a third of the steps
    may be outliers.
    """
    points = [(step, math.log(mean)) for step, mean in enumerate(means) if mean > 0]
    slopes = [(b - a) / (later - earlier) for (earlier, a), (later, b) in combinations(points, 2)]
    return math.expm1(median(slopes)) if slopes else 0.0
