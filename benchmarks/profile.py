"""The errors of predictions that a profile of a few minutes makes of later measurements.

    earl profile's own measuring: a grid of (length, concurrency)  ─► table ─┐
    the same measuring at points between the grid's, which the table lacks  ─┴─► relative errors
    one step as a run has it: C sequences, each token generated from a short prompt on to length L ─► another

The model has SmolLM2-135M's shape and random weights.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.children import within
from benchmarks.options import RESULTS, AsJson, Dtype, Results, computed_dtype, whole_numbers
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import phase
from benchmarks.record.results import publish
from benchmarks.trainer_memory import SMOLLM2
from earl.cli.lib.notices import Count
from earl.config.run import RunConfig
from earl.models.spec import ModelSpec, spec_of
from earl.parallelism import STAGES
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.process.client import EngineProcess
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import ProfileTable
from services.scheduler.profiler.command import MeasuredProfile, measure

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/scheduler/profile",
    "services/scheduler/profiler",
    "services/rollout/engines",
    "services/trainer/step",
)

VOCABULARY, LAYERS, POSITIONS = 49_152, 30, 8_192
# Prompt of the whole step's sequences, and the bound of that step.
PROMPT_TOKENS, STEP_S = 8, 600.0
# For points that are measured once more.
AGAIN_S = 60.0
MEASURES = (
    "profile_error: the largest of |predicted - measured| / measured over the points of `held_out`, whose "
    "lengths and concurrencies lie between those of the grid; predicted from the grid alone, measured after "
    "it in the same way. step_error: the same for the seconds of one whole step, every token of which is "
    "generated. machine_drift: points of the grid measured once more at the end, over what they were: far "
    "from 1 it is the machine that changed, and the errors say little. profile_s: what the grid took, "
    "starts included."
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One held-out point; rates in tokens per device and second."""

    stage: str
    context_tokens: float
    concurrency: float
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return abs(self.predicted - self.measured) / self.measured


@app.command(cls=RecordedCommand)
def profile(
    stages: Annotated[str, typer.Option(help="Stages, separated by commas.")] = "rollout",
    contexts: Annotated[str, typer.Option(help="Lengths of the grid, in tokens.")] = "512,1024,2048,4096",
    concurrency: Annotated[str, typer.Option(help="Concurrencies of the grid.")] = "1,2,4,8,16",
    held_contexts: Annotated[
        str, typer.Option(help="Lengths of the held-out points, in tokens.")
    ] = "724,1448,2896",
    held_concurrency: Annotated[str, typer.Option(help="Concurrencies of the held-out points.")] = "3,6,12",
    step: Annotated[str, typer.Option(help="Length and concurrency of a whole step of rollout.")] = "512,4",
    minutes: Annotated[float, typer.Option(help="Time for the profile.")] = 5.0,
    held_minutes: Annotated[float, typer.Option(help="Time for the points held out.")] = 5.0,
    dtype: Dtype = "auto",
    threads: Annotated[int, typer.Option(min=1, help="torch threads.")] = 2,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model; SmolLM2-135M has 30.")] = LAYERS,
    vocabulary: Annotated[
        int, typer.Option(min=2, help="Vocabulary of the model; SmolLM2's is 49152.")
    ] = VOCABULARY,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure how well a profile that takes minutes predicts later measurements."""
    computed = computed_dtype(dtype)
    names = stages.split(",")
    if not set(names) <= set(STAGES):
        raise typer.BadParameter(f"--stages {stages!r} is no list of {', '.join(STAGES)}")
    grid = (whole_numbers(contexts), whole_numbers(concurrency))
    held = (whole_numbers(held_contexts), whole_numbers(held_concurrency))
    whole = whole_numbers(step)
    if len(whole) != 2:
        raise typer.BadParameter(f"--step {step!r} is not a length and a concurrency such as 512,4")
    settings = {"dtype": computed, "threads": threads, "layers": layers, "vocabulary": vocabulary}
    with tempfile.TemporaryDirectory(prefix="earl-bench-profile-") as temporary:
        directory = Path(temporary)
        phase("writing the model")
        model = write_model(directory / "model", layers, vocabulary, computed)
        config = run_config(model, computed, threads, max(*grid[0], *held[0]))
        started = time.monotonic()
        table = measured(config, names, grid, 60 * minutes, directory / "grid", "points of the grid")
        profile_s = time.monotonic() - started
        after = measured(config, names, held, 60 * held_minutes, directory / "held", "held-out points")
        # At the middle of the grid's lengths, with fewest and most sequences.
        same = ([grid[0][len(grid[0]) // 2]], sorted({min(grid[1]), max(grid[1])}))
        again = measured(config, names, same, AGAIN_S, directory / "again", "points measured again")
        result = {"machine_drift": drift(rows_of(table), rows_of(again)), **figures(table, after)}
        if any(row.stage == "rollout" for row in rows_of(table)):
            result |= whole_step(config, model, whole[0], whole[1], rows_of(table))
    publish(
        "profile",
        {"measures": MEASURES, **settings, "profile_s": round(profile_s, 1), **result},
        results,
        as_json=as_json,
    )


def figures(table: list[MeasuredProfile], after: list[MeasuredProfile]) -> dict[str, Any]:
    """Figures that compare a profile's predictions with the points measured after it."""
    compared = compare(rows_of(table), rows_of(after))
    return {
        **summary(compared),
        "not_measured": [
            f"{measurement.stage} {name}" for measurement in (*table, *after) for name in measurement.lacking
        ],
        "held_out": [{**asdict(point), "error": round(point.error, 4)} for point in compared],
        "table": [
            {
                "stage": row.stage,
                "context_tokens": row.context_tokens,
                "concurrency": row.concurrency,
                "tokens_per_device_s": row.tokens_per_device_s,
                "peak_memory_fraction": row.peak_memory_fraction,
            }
            for row in rows_of(table)
        ],
    }


def measured(
    config: RunConfig,
    stages: list[str],
    grid: tuple[list[int], list[int]],
    seconds: float,
    kept: Path,
    counted_as: str,
) -> list[MeasuredProfile]:
    """Returns what `earl profile` measures at the points of `grid`. counted_as: the benchmark's phase."""
    profiles: list[MeasuredProfile] = []
    points = Count()
    phase(counted_as)

    def say(line: str) -> None:
        sys.stderr.write(line + "\n")
        phase(counted_as, *points())

    work = measure(
        config, stages, *grid, seconds=seconds, say=say, measured=profiles, kept=kept, points=points
    )
    asyncio.run(work)
    return profiles


def rows_of(profiles: list[MeasuredProfile]) -> list[ProfileRow]:
    return [row for profile in profiles for row in profile.rows]


def compare(table: list[ProfileRow], held: list[ProfileRow]) -> list[Compared]:
    """The table's predictions for the held-out rows, where both have a throughput."""
    tables = {stage: ProfileTable(table, stage) for stage in {row.stage for row in table}}
    compared = []
    for row in held:
        if row.stage not in tables or row.tokens_per_device_s is None:
            continue
        point = (row.context_tokens, row.concurrency)
        predicted = tables[row.stage].predict(row.parallelism, *point).tokens_per_device_s
        compared.append(Compared(row.stage, *point, predicted, row.tokens_per_device_s))
    return compared


def summary(compared: list[Compared]) -> dict[str, float | None]:
    """The largest and the median error; None where nothing could be compared."""
    errors = [pair.error for pair in compared]
    return {
        "profile_error": round(max(errors), 4) if errors else None,
        "profile_error_median": round(statistics.median(errors), 4) if errors else None,
    }


def drift(table: list[ProfileRow], again: list[ProfileRow]) -> float | None:
    """The median ratio of the points' throughput now to their throughput in the table."""
    before = {(row.stage, row.context_tokens, row.concurrency): row.tokens_per_device_s for row in table}
    ratios = []
    for row in again:
        was = before.get((row.stage, row.context_tokens, row.concurrency))
        if was and row.tokens_per_device_s:
            ratios.append(row.tokens_per_device_s / was)
    return round(statistics.median(ratios), 4) if ratios else None


def whole_step(
    config: RunConfig, model: Path, length: int, count: int, table: list[ProfileRow]
) -> dict[str, Any]:
    """Figures of a step of `count` sequences that grow to `length`: predicted by the table, and measured."""
    rows = ProfileTable(table, "rollout")
    rate = rows.predict(rows.parallelisms[0], length, count).tokens_per_device_s
    predicted = count * length / rate
    spec = EngineSpec(
        name="bench",
        model_dir=str(model),
        device="cpu",
        threads=config.rollout.threads or 1,
        dtype=config.model.weight_dtype,
        max_sequences=count,
        max_context_tokens=length,
        start_s=STEP_S,
    )
    phase(f"a step of {count} sequences of {length} tokens")
    seconds = asyncio.run(_step(spec, length, count))
    return {
        "step": {
            "context_tokens": length,
            "concurrency": count,
            "predicted_s": round(predicted, 2),
            "measured_s": round(seconds, 2),
        },
        "step_error": round(abs(predicted - seconds) / seconds, 4),
    }


async def _step(spec: EngineSpec, length: int, count: int) -> float:
    engine = EngineProcess(spec)
    await engine.start()
    try:
        generator = np.random.default_rng(0)
        requests = [
            GenerateRequest(
                request_id=f"{number}",
                ids=generator.integers(0, 2, PROMPT_TOKENS).tolist(),
                max_new_tokens=length - PROMPT_TOKENS,
            )
            for number in range(count)
        ]
        started = time.perf_counter()
        async with within(STEP_S, f"a step of {count} sequences of {length} tokens"):
            await asyncio.gather(*(engine.generate_all(request) for request in requests))
        return time.perf_counter() - started
    finally:
        await engine.stop()


def run_config(model: Path, dtype: str, threads: int, longest: int, device: str = "cpu") -> RunConfig:
    """The configuration of a run with one device per stage."""
    return RunConfig.model_validate(
        {
            "name": "profile",
            "environment": {"name": "profile"},
            "model": {"path": str(model), "dtype": dtype},
            "rollout": {"device": device, "threads": threads, "max_context_tokens": longest},
            "trainer": {"device": device, "threads": threads, "microbatch_tokens": max(longest, 16_384)},
            "reference": {"device": device, "threads": threads},
        }
    )


def write_model(directory: Path, layers: int, vocabulary: int, dtype: str) -> Path:
    """Writes a checkpoint of SmolLM2's shape with random weights; returns its directory."""
    import torch
    from safetensors.torch import save_file

    config = {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": SMOLLM2["hidden"],
        "intermediate_size": SMOLLM2["intermediate"],
        "num_hidden_layers": layers,
        "num_attention_heads": SMOLLM2["heads"],
        "num_key_value_heads": SMOLLM2["kv_heads"],
        "head_dim": SMOLLM2["head_dim"],
        "max_position_embeddings": POSITIONS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        "tie_word_embeddings": True,
        "dtype": dtype,
    }
    spec: ModelSpec = spec_of(config)
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in spec.shapes().items():
        values = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02
        tensors[name] = values.to(getattr(torch, dtype))
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
