"""A version's way from trainer to engines of one host: how long training stands, what memory it takes."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.children import REPORT, MeasurementWrong
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.publish.memory import median_interval
from benchmarks.publish.model import write_model
from benchmarks.record import results as record
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import counted, phase
from benchmarks.reshard.cases import SMOLLM2
from benchmarks.role import RoleProcess
from earl.bus import EmbeddedValkey
from earl.config.data_plane import DataPlaneConfig
from earl.models.spec import ModelSpec

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "earl/dispatch",
    "services/trainer/publish",
    "services/rollout/engines/contract",
    "services/rollout/engines/torch",
    "services/rollout/pool",
)

# By way of the weights: what `data_plane.transport` is.
WAYS = {"shared": "auto", "wire": "ucx"}
ENGINES = (1, 4)
WARM_UP = 3
LOADS = 3
TRAINING_S = 0.05
COMPARES = (
    "A model of SmolLM2-135M's sizes but 8 heads and 4 key-value heads, random weights, one trainer rank "
    "with float32 parameters on a CPU that publishes in bfloat16, and a rollout worker with torch engines "
    "of tp 1 in bfloat16, all real processes on one host. stop_vs_copy: seconds for which training stands "
    "for a version (freeing a slot, reserving, copying and whatever else the training thread waits for), "
    "over the seconds of a plain copy of the same tensors with the same cast into a third slot of the "
    "same arena, touched before; in turn within a round, median of the rounds' ratios, with an interval "
    "that holds the median with 95 %. Nobody reads meanwhile. staging_mib: private memory of worker and "
    "engines and the worker's arenas after each of them has applied several versions, less the same "
    "before the first one, when the engines had weights of their own and had looked for a version in "
    "vain, and less what the same takes for a model of as many tensors and next to no bytes; the "
    "trainer's slots are not in it. Ways: shared, engines map the trainer's slots; wire, "
    "data_plane.transport = ucx, so that the worker reads a copy over the wire and the trainer digests "
    "what it publishes. Engines of one worker must give equal tokens and log-probs, of the last version."
)


@app.command(cls=RecordedCommand)
def publish(
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds of publish and plain copy.")] = 21,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model.")] = SMOLLM2.layers,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the trainer's rank.")] = 1,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Publish weights and apply them in engines: how long training stands, and which memory that takes."""
    spec = replace(SMOLLM2, layers=layers)
    ways = {way: asyncio.run(measure(spec, way, rounds, threads)) for way in WAYS}
    worst = max(ways.values(), key=lambda figures: figures["stop_vs_copy"])
    result = {
        "compares": COMPARES,
        "rounds": rounds,
        "threads": threads,
        "parameters": spec.parameters,
        "stop_vs_copy": worst["stop_vs_copy"],
        "stop_vs_copy_interval": worst["stop_vs_copy_interval"],
        "staging_mib": ways["shared"]["staging_mib"],
        "staging_growth_mib": max(figures["staging_growth_mib"] for figures in ways.values()),
        "ways": ways,
    }
    record.publish("publish", result, results, as_json=as_json)


def small(spec: ModelSpec) -> ModelSpec:
    """A model of as many tensors and next to no bytes."""
    return replace(spec, heads=2, kv_heads=1, hidden=16, head_dim=8, intermediate=16, vocab=64)


async def measure(
    spec: ModelSpec, way: str, rounds: int, threads: int, arenas: str = "/dev/shm"
) -> dict[str, Any]:
    """The figures of one way. Raises MeasurementWrong if engines differ, or a version went another way."""
    figures = await _measured(spec, way, rounds, threads, arenas)
    least = await _measured(small(spec), way, 0, threads, arenas)
    staging = {
        # Not -0.0.
        engines: round((held - least["held"][engines]) / (1 << 20), 1) + 0.0
        for engines, held in figures.pop("held").items()
    }
    return figures | {"staging_mib": staging, "staging_growth_mib": round(_growth(staging), 1)}


def _growth(staging: dict[str, float]) -> float:
    return staging[str(max(ENGINES))] - staging[str(min(ENGINES))]


async def _measured(spec: ModelSpec, way: str, rounds: int, threads: int, arenas: str) -> dict[str, Any]:
    """The figures of a model; held: bytes, by number of engines, that versions and their reading take."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-")))
        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-", dir=arenas))
        valkey = EmbeddedValkey()
        stack.push_async_callback(valkey.stop)
        url = await valkey.start(directory / "bus")
        (directory / "model").mkdir()
        await asyncio.to_thread(write_model, directory / "model", spec)
        plane = DataPlaneConfig.model_validate({"transport": WAYS[way], "arena_dir": shared})
        common: dict[str, Any] = {
            "model": str(directory / "model"),
            "redis": url,
            "arenas": shared,
            "data_plane": plane.model_dump_json(),
        }
        module = "benchmarks.publish.roles"
        phase(f"starting the trainer, {way}")
        trainer, opened = await RoleProcess.start(module, role="trainer", threads=threads, **common)
        stack.push_async_callback(trainer.stop)
        figures: dict[str, Any] = await stop(trainer, way, rounds) if rounds else {}
        held: dict[str, int] = {}
        loads: dict[str, float] = {}
        for engines in ENGINES:
            phase(f"{engines} engines, {way}")
            worker, _ = await RoleProcess.start(
                module, role="worker", engines=engines, trainer_arena=opened["path"], **common
            )
            try:
                held[str(engines)], seconds = await applied(trainer, worker, way)
            finally:
                await worker.stop()
            loads[str(engines)] = round(seconds, 4)
    return figures | {
        "version_mib": round(opened["version_bytes"] / (1 << 20), 1),
        "load_s": loads,
        "held": held,
    }


async def stop(trainer: RoleProcess, way: str, rounds: int) -> dict[str, Any]:
    """Rounds of a publish and a plain copy, the one or the other first in turn."""
    times: dict[str, list[float]] = {"publish": [], "copy": []}
    for turn in counted(f"rounds of publish and copy, {way}", range(rounds + WARM_UP)):
        for what in ("publish", "copy") if turn % 2 else ("copy", "publish"):
            answer = await trainer.ask(do=what, training_s=TRAINING_S)
            if turn >= WARM_UP:
                times[what].append(answer["seconds"])
    ratios = [a / b for a, b in zip(times["publish"], times["copy"], strict=True)]
    return {
        "stop_vs_copy": round(statistics.median(ratios), 3),
        "stop_vs_copy_interval": [round(end, 3) for end in median_interval(ratios)],
        **{f"{what}_ms": round(1000 * statistics.median(taken), 2) for what, taken in times.items()},
        "rounds_ms": [
            [round(1000 * seconds, 2) for seconds in pair] for pair in zip(*times.values(), strict=True)
        ],
    }


async def applied(trainer: RoleProcess, worker: RoleProcess, way: str) -> tuple[int, float]:
    """(bytes held for versions after the last of several, median seconds of a load)."""
    loads: list[dict[str, Any]] = []
    published: dict[str, Any] = {}
    for _ in range(LOADS):
        published = await trainer.ask(do="publish")
        loads.append(await worker.ask(do="load", version=published["version"], keys=published["keys"]))
    answers = (await worker.ask(do="sample"))["answers"]
    of_last = [published["version"]] * len(answers[0][2])
    if any(answer[:2] != answers[0][:2] or answer[2] != of_last for answer in answers):
        raise MeasurementWrong("engines that applied one version give different tokens", REPORT)
    if ("ucx-tcp" in loads[-1]["paths"]) != (way == "wire"):
        raise MeasurementWrong(f"a version came by {loads[-1]['paths']}, not by {way}", REPORT)
    return loads[-1]["held_bytes"], statistics.median(load["seconds"] for load in loads)
