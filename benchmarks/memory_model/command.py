"""Predicted against measured peaks of memory: the errors of services.scheduler.memory."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from benchmarks.memory_model import engine, ranks
from benchmarks.memory_model.cases import CASES, HELD_OUT, MemoryCase
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import counted
from benchmarks.record.results import publish
from earl.obs import processor
from services.scheduler import memory

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services/scheduler/memory",
    "services/rollout/engines/torch",
    "services/trainer/step",
    "services/trainer/model",
    "services/trainer/reference",
    "earl/models",
)

MIB = 1 << 20
# Goals of all cases together. A run that is predicted too small ends out of memory; one predicted too large
# only uses less of a device than it could.
MOST = {"memory_error": 0.10, "held_out_under": 0.10, "held_out_over": 0.20}
LEAST = {"fitted_cases": 20, "held_out_cases": 8}
COMPARES = (
    "Peak private memory of a rank against services.scheduler.memory.predict, beyond what the same process "
    "takes for a model of a few kilobytes: the median of --starts starts, since the heap of one start is "
    "laid out unlike that of the next (results up to 2026-11-26 16:12 have one). Every start of a case is "
    "fresh processes on the CPU: trainer (two steps) and reference ranks with the product's allocator "
    "settings; torch engines behind EngineProcess that load two versions over the data plane and then "
    "generate. Of several ranks the one that took most. A trainer's published versions lie in its arena, "
    "which is counted exactly and left out on both sides. error: |predicted - measured| / measured. "
    "memory_error and its median are of the cases that the predictor's constants were fitted on; "
    "held_out_error and its median of others, on which nothing was; of those, held_out_under is the largest"
    " by which one was predicted too small, held_out_over too large."
)


@app.command("memory-model", cls=RecordedCommand)
def memory_model(
    cases: Annotated[
        str, typer.Option(help="Prefixes of cases' names, separated by commas; by default all.")
    ] = "",
    starts: Annotated[int, typer.Option(min=1, help="Starts of each case, of which the median counts.")] = 3,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Compare predicted with measured peak memory of engines, trainer and reference stage."""
    begin = tuple(cases.split(",")) if cases else ("",)
    chosen = {name: case for name, case in (CASES | HELD_OUT).items() if name.startswith(begin)}
    if not chosen:
        known = ", ".join([*CASES, *HELD_OUT])
        raise typer.BadParameter(f"{cases!r} is no prefix of a case: {known}", param_hint="cases")
    runs = asyncio.run(measure(chosen, starts))
    figures = {"compares": COMPARES, "starts": starts, **summary(runs), "runs": runs}
    publish("memory-model", figures, results, as_json=as_json)


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The largest and the median error, of fitted and of held-out cases apart, None where there are none; how
    far held-out cases are predicted too low and too high at most; and the goals that were missed."""

    def over(function: Callable[[list[float]], float], held_out: bool) -> float | None:
        errors = [abs(run["error"]) for run in runs if run["held_out"] is held_out]
        return function(errors) if errors else None

    held_out = [run["error"] for run in runs if run["held_out"]]
    figures = {
        "memory_error": over(max, False),
        "memory_error_median": over(statistics.median, False),
        "held_out_error": over(max, True),
        "held_out_error_median": over(statistics.median, True),
        "held_out_under": max(0.0, -min(held_out)) if held_out else None,
        "held_out_over": max(0.0, *held_out) if held_out else None,
        "fitted_cases": len(runs) - len(held_out),
        "held_out_cases": len(held_out),
    }
    missed = [name for name, most in MOST.items() if (figures[name] or 0.0) > most]
    missed += [name for name, least in LEAST.items() if figures[name] < least]
    return {**figures, "missed": missed}


async def measure(
    cases: Mapping[str, MemoryCase], starts: int = 1, base_bytes: int | None = None
) -> list[dict[str, Any]]:
    """Measures the cases one after the other, each so many times, and returns a record for each.

    base_bytes: what an engine of a few kilobytes takes, as engine.measure gives it; None: to be measured.
    """
    runs: list[dict[str, Any]] = []
    for name, case in counted("cases", list(cases.items())):
        if case.stage == "rollout":
            if base_bytes is None:
                base_bytes = int(statistics.median([await engine.measure(case.tiny) for _ in range(starts)]))
            measured = [await engine.measure(case) - base_bytes for _ in range(starts)]
        else:
            measured = [await ranks.measure(case) for _ in range(starts)]
        runs.append(record(name, case, measured))
        sys.stderr.write(f"{name}: {runs[-1]['predicted_mib']} of {runs[-1]['measured_mib']} MiB\n")
    return runs


def record(name: str, case: MemoryCase, measured: Sequence[int]) -> dict[str, Any]:
    """A case's predicted and measured memory in MiB, and the relative error of the prediction.

    measured: bytes of each start.
    """
    measured_bytes = statistics.median(measured)
    predicted = predict(case)
    total = private_bytes(case, predicted)
    return {
        "case": name,
        "held_out": name in HELD_OUT,
        "stage": case.stage,
        "parallelism": case.parallelism,
        "context_tokens": case.context_tokens,
        "concurrency": case.concurrency,
        "measured_mib": round(measured_bytes / MIB, 1),
        "starts_mib": [round(size / MIB, 1) for size in measured],
        "predicted_mib": round(total / MIB, 1),
        "error": round(total / measured_bytes - 1, 4),
        "moment": predicted.moment,
        "parts_mib": {part: round(size / MIB, 1) for part, size in predicted.parts().items() if size},
    }


def predict(case: MemoryCase) -> memory.MemoryParts:
    """The memory model's prediction for a case."""
    return memory.predict(
        case.stage,
        case.config,
        case.spec,
        case.degrees,
        case.context_tokens,
        case.concurrency,
        shared_tokens=case.shared_tokens,
        trained_fraction=case.trained_fraction,
        packs_bfloat16=processor.onednn_bfloat16(processor.flags()),
    )


def private_bytes(case: MemoryCase, predicted: memory.MemoryParts) -> int:
    """The predicted parts without a trainer's arena, which is shared memory."""
    return predicted.total_bytes - (predicted.staging if case.stage == "trainer" else 0)
