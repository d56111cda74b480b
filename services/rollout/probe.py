"""`python -m services.rollout.probe --job FILE`: how fast engines generate, measured for `earl profile`.

    engines, alive for all points ─► one session of each keeps the longest context: other contexts begin it
    point (L, C): C sequences grow to L at once (memory) ─► C sessions generate around L / 2, timed

What is timed is a turn of C sequences whose contexts go from a little below L / 2 to a little above it, from
the first request's posting to the last one's answer; their contexts are in the cache already. The time of a
token grows with its context in a straight line (the KV that it reads), so a sequence that grows to L takes as
long as if each token had been generated at L / 2: tokens_per_device_s is what a step of C sequences of mean
length L does, had it generated every token.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import numpy as np

from earl.config.run import RunConfig
from earl.errors import EarlError, EngineLost, EngineOutOfMemory, OutOfMemory
from earl.models.spec import load_spec
from earl.obs.memory import forget_peaks, host_bytes, peak_bytes
from earl.profiling import (
    ProfileJob,
    ProfileSample,
    Visit,
    answers,
    bound_memory,
    decode,
    encode,
    read_job,
)
from earl.rpc.main import ended_by
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.process.client import EngineProcess
from services.rollout.pool.devices import engine_device

# Bounds of a turn's tokens: fewer measure little, more measure no better.
FEWEST, MOST = 4, 256
# Bound of the engines' start; later calls are bounded by the caller.
START_S = 300.0
KEEPER = "keeper"


class RolloutProbe:
    """Measures the engines of one pool: dp of them, of tp ranks each."""

    def __init__(self, job: ProfileJob) -> None:
        config = RunConfig.model_validate_json(job.run)
        self._job, self._rollout = job, config.rollout
        self._longest = max(length for length, _ in job.points)
        most = max(-(-sequences // job.dp) for _, sequences in job.points)
        # A single point has no use for a context that others begin with.
        self._keeps = len(job.points) > 1
        vocabulary = load_spec(job.model).vocab
        self._ids: list[int] = np.random.default_rng(0).integers(0, vocabulary, self._longest).tolist()
        self._engines = [
            EngineProcess(spec) for spec in engine_specs(job, config, most + self._keeps, self._longest)
        ]
        self._requests = itertools.count()
        # By point that was visited: seconds that one token of every sequence took the last time.
        self._pace: dict[tuple[int, int], float] = {}

    async def start(self, stack: AsyncExitStack) -> None:
        """Starts an engine for probing. Raises what Engine.start raises."""
        for engine in self._engines:
            stack.push_async_callback(engine.stop)
        await asyncio.gather(*(engine.start() for engine in self._engines))
        forget_peaks(self._pids)
        if self._keeps:
            await asyncio.gather(
                *(self._generate(engine, self._longest - 1, 1, KEEPER) for engine in self._engines)
            )

    @property
    def _pids(self) -> list[int]:
        return [pid for engine in self._engines for pid in engine.pids]

    async def visit(self, visit: Visit) -> ProfileSample:
        """Measures one point. Raises EngineLost."""
        point = (visit.context_tokens, visit.concurrency)
        sequences = [
            engine
            for _, engine in zip(range(visit.concurrency), itertools.cycle(self._engines), strict=False)
        ]
        if point not in self._pace:
            # Takes the memory that the point's sequences need at their longest.
            await self._turn(sequences, visit.context_tokens - 1, 1)
            self._pace[point] = 0.0
        middle, left_tokens = visit.context_tokens // 2, max(1, visit.context_tokens // 4)
        # Brings the contexts into the sessions' slots.
        warm = min(left_tokens, FEWEST)
        took = await self._turn(sequences, middle, warm, "sequence")
        pace = self._pace[point] or took / warm
        tokens = min(left_tokens, MOST, max(FEWEST, round(visit.seconds / pace)))
        took = await self._turn(sequences, middle - tokens // 2, tokens, "sequence")
        self._pace[point] = took / tokens
        for number, engine in enumerate(sequences):
            await engine.release(f"sequence-{number}")
        rate = visit.concurrency * tokens / took / (self._job.dp * self._job.tp)
        return ProfileSample(rate, await self._memory(visit))

    async def _turn(
        self, engines: Sequence[EngineProcess], context_tokens: int, tokens: int, session: str = ""
    ) -> float:
        """Generates `tokens` tokens for one sequence on each of `engines` at once; returns the seconds it
        took."""
        started = time.perf_counter()
        await asyncio.gather(
            *(
                self._generate(engine, context_tokens, tokens, session and f"{session}-{number}")
                for number, engine in enumerate(engines)
            )
        )
        return time.perf_counter() - started

    async def _generate(self, engine: EngineProcess, context_tokens: int, tokens: int, session: str) -> None:
        name = f"probe-{next(self._requests)}"
        ids = self._ids[: max(1, context_tokens)]
        request = GenerateRequest(request_id=name, ids=ids, max_new_tokens=tokens, session=session)
        await engine.generate_all(request)

    async def _memory(self, visit: Visit) -> float | None:
        """The fraction of the host's memory, or of the fullest CUDA device's, that the engines take, with
        this point's KV in place of what their caches hold now. None for engines that do not count that."""
        if self._rollout.engine != "torch":
            return None
        stats = [await engine.stats() for engine in self._engines]
        # KV of each engine's sequences at this point.
        kv_bytes = [
            len(range(first, visit.concurrency, self._job.dp)) * visit.context_tokens * engine.kv_token_bytes
            for first, engine in enumerate(stats)
        ]
        if self._engines[0].caps.device == "cpu":
            kept = sum(engine.kv_committed_tokens * engine.kv_token_bytes for engine in stats)
            return (peak_bytes(self._pids) + (sum(kv_bytes) - kept) * self._job.tp) / host_bytes()
        # The cache is allocated whole there.
        return max(
            (
                (engine.memory.used_bytes + point_bytes - engine.kv_tokens * engine.kv_token_bytes)
                / engine.memory.size_bytes
                for engine, point_bytes in zip(stats, kv_bytes, strict=True)
                if engine.memory is not None
            ),
            default=None,
        )


def engine_specs(job: ProfileJob, config: RunConfig, slots: int, context: int) -> list[EngineSpec]:
    """The engines that a job measures, on the devices that a run's pool of this parallelism gives them."""
    rollout = config.rollout
    return [
        EngineSpec(
            name=f"probe-{number}",
            model_dir=job.model,
            engine=rollout.engine,
            python=rollout.engine_python,
            tp=job.tp,
            device=engine_device(rollout.device, number, job.tp),
            threads=rollout.threads or 1,
            dtype=config.rollout_dtype,
            max_sequences=slots,
            max_context_tokens=context,
            deterministic=config.exact_kernels,
            start_s=START_S,
            paced=config.paced.model_dump_json() if config.paced.table else "",
        )
        for number in range(job.dp)
    ]


async def serve(job: ProfileJob) -> None:
    """Answers visits until the end of input. Raises OutOfMemory, or another EarlError."""
    out = answers()
    probe = RolloutProbe(job)
    async with AsyncExitStack() as stack:
        try:
            await probe.start(stack)
            out.write("{}\n")
            while line := await asyncio.to_thread(sys.stdin.readline):
                out.write(encode(await probe.visit(decode(Visit, line))))
        except EngineLost as lost:
            # Only the kernel kills an engine here, for lack of memory.
            if isinstance(lost, EngineOutOfMemory) or signal.SIGKILL.name in lost.message:
                raise OutOfMemory(lost.message, "measure shorter contexts, or fewer at once") from lost
            raise


def main() -> int:
    job = read_job(sys.argv)
    rollout = RunConfig.model_validate_json(job.run).rollout
    if rollout.engine == "torch":
        bound_memory(rollout.device, job.dp * job.tp)
    try:
        asyncio.run(serve(job))
    except EarlError as error:
        return ended_by(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
