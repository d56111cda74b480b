"""EARL against TRL's GRPOTrainer: wall time to the same reward, same model, task, batch and seeds.

One small Llama, taught a little, is saved once; both sides start from it, see the same questions in the
same order, and take the same step: `groups` questions with `group_size` answers, group-relative
advantages, one AdamW step at a constant learning rate on the clipped loss, mean over tokens, float32.
A side is done when the moving average of its training reward is at the threshold. Both have the whole
machine, one after the other. There are two tasks: one whose answers have unequal lengths, one with equal.

TRL: one process, torch threads = cores, which samples, then trains. Answers come from transformers'
`generate`, from its continuous batching, or from vLLM in the same process, eager or compiled
(vllm_sampler.py): a short trial on each task picks the one that would be done first. A sampler that cannot
be had has its error in the result. EARL: `earl train`, every service a process of its own, one thread for
the engine and one for the trainer, which is at most one step behind the sampler. Times count from each
process's start; without start-up, from when it could sample first. Every question has a seed of its own;
the shortest ones, drawn from few numbers, come up more than once, the same for both.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.children import last_line
from benchmarks.e2e import earl_side, trl_process
from benchmarks.e2e.settings import Settings
from benchmarks.e2e.task import TASKS, UNEQUAL
from benchmarks.options import RESULTS, AsJson, Results, Seeds, whole_numbers
from benchmarks.record.checkout import ROOT
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import phase
from benchmarks.record.results import publish

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/dispatch",
    "earl/models",
    "earl/env",
    "earl/stack",
)

# Longest that teaching the model, or asking it, may take.
MODEL_S = 1_200.0
# Held-out questions that both final models answer at the end, not timed.
HELD_OUT = 512
# The names of both sides, as the phase of a seed has them.
SIDES = {"earl": "EARL", "trl": "TRL"}
DEFAULTS = Settings()


@app.command(cls=RecordedCommand)
def e2e(
    seeds: Seeds = "0,1,2",
    tasks: Annotated[str, typer.Option(help=f"Any of {', '.join(TASKS)}, separated by commas.")] = ",".join(
        TASKS
    ),
    threshold: Annotated[
        float | None, typer.Option(help="Mean training reward to reach, instead of each task's own.")
    ] = None,
    steps: Annotated[int, typer.Option(help="The most steps of a side.")] = DEFAULTS.steps,
    limit_s: Annotated[float, typer.Option(help="The most seconds of a side and a seed.")] = DEFAULTS.limit_s,
    generation: Annotated[
        str,
        typer.Option(help=f"TRL's sampler: {', '.join(trl_process.SAMPLERS)}, or auto: the fastest of them."),
    ] = trl_process.AUTO,
    start: Annotated[
        Path | None, typer.Option("--model", help="Model to start from instead of a model taught here.")
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="Directory to keep runs and models in.")] = None,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Compare EARL with TRL's GRPOTrainer: wall time to the same reward on the same tasks."""
    numbers, chosen = whole_numbers(seeds), task_names(tasks)
    trl_process.require("generate" if generation == trl_process.AUTO else generation)
    settings = [
        Settings(
            task=name,
            threshold=TASKS[name].threshold if threshold is None else threshold,
            steps=steps,
            limit_s=limit_s,
            threads=len(os.sched_getaffinity(0)),
        )
        for name in chosen
    ]
    directory = Path(tempfile.mkdtemp(prefix="earl-e2e-", dir=keep))
    try:
        result = compare(settings, numbers, directory, generation, start)
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    # A result of the series has the figures of the unequal task, which the other one stands beside.
    name = "e2e" if UNEQUAL.name in chosen else f"e2e-{chosen[0]}"
    publish(name, result, results, as_json=as_json)


def task_names(text: str) -> list[str]:
    """The tasks of a list such as "equal,unequal", in the order of TASKS. Raises typer.BadParameter."""
    given = text.split(",")
    if unknown := [name for name in given if name not in TASKS]:
        raise typer.BadParameter(f"--tasks has {unknown[0]!r}, which is none of {', '.join(TASKS)}")
    return [name for name in TASKS if name in given]


def compare(
    tasks: list[Settings], seeds: list[int], directory: Path, generation: str, start: Path | None
) -> dict[str, Any]:
    """Every task and seed on both sides, one after the other. The first task's figures stand at the top,
    those of another one under its name; see `task_figures`."""
    started_s = time.monotonic()
    if start is None:
        trl_process.say("teaching the model that both start from")
        phase("teaching the model")
        start = directory / "start"
        model_process(start)
    taught_s = time.monotonic() - started_s
    first, *others = [
        task_figures(settings, seeds, directory / settings.task, generation, start) for settings in tasks
    ]
    rest = {figures["settings"]["task"]: figures for figures in others}
    return {"compared": __doc__, "taught_s": round(taught_s, 1), **first, **rest}


def task_figures(
    settings: Settings, seeds: list[int], directory: Path, generation: str, start: Path
) -> dict[str, Any]:
    """The trial of TRL's samplers, unless `generation` names one, and every seed on both sides; see `summary`
    for the figures."""
    trials: dict[str, dict[str, Any]] = {}
    if generation == trl_process.AUTO:
        trials = trl_process.trials(settings, start, directory)
        generation = trl_process.fastest(trials)
    runs = []
    for number, seed in enumerate(seeds):
        place = directory / f"seed-{seed}"
        # In turns, so that neither side always finds the machine as the other left it.
        order = ("earl", "trl") if number % 2 == 0 else ("trl", "earl")
        turn = f"{settings.task}, seed {seed} ({number + 1} of {len(seeds)})"
        runs.append(one_seed(replace(settings, seed=seed), start, place, generation, order, turn))
    return {
        "settings": settings.as_dict(),
        "trl_generation": generation,
        "trl_trials": trials,
        "runs": runs,
        **summary(runs),
    }


def one_seed(
    settings: Settings, start: Path, place: Path, generation: str, order: tuple[str, ...], turn: str
) -> dict[str, Any]:
    """Both sides on one seed: their figures, what was earned when, and on held-out questions at the end.

    turn: the task and the seed as their phase names them.
    """
    sides: dict[str, Any] = {"seed": settings.seed}
    for side in order:
        phase(f"{turn}: {SIDES[side]}")
        if side == "earl":
            trace, final = earl_side.run(settings, start, place), earl_side.final_model(place)
        else:
            trace, final = trl_process.run(settings, start, place, generation), trl_process.final_model(place)
        figures = trace.figures(settings)
        trl_process.say(f"{turn}, {SIDES[side]}: {figures}")
        sides[side] = {
            **figures,
            "held_out": model_process(final, settings.task, HELD_OUT) if final.exists() else None,
            "versions": trace.versions,
            "settings": trace.settings,
            "times_s": [round(value, 2) for value in trace.times_s],
            "rewards": [round(value, 4) for value in trace.rewards],
        }
    return sides


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over seeds. A speed-up is TRL's seconds over EARL's of the same seed: 0 where EARL never
    reached the threshold; where TRL alone did not, its time until it was stopped counts (at least so much).
    """
    whole, running = [], []
    for run in runs:
        earl, peer = run["earl"], run["trl"]
        last = peer["times_s"][-1] if peer["times_s"] else 0.0
        seconds = peer["seconds"] if peer["reached"] else last
        without = peer["seconds_without_start"] if peer["reached"] else last - peer["start_s"]
        whole.append(seconds / earl["seconds"] if earl["reached"] else 0.0)
        running.append(without / earl["seconds_without_start"] if earl["reached"] else 0.0)
    return {
        "speedup_vs_trl": round(statistics.median(whole), 3),
        "speedup_vs_trl_without_start": round(statistics.median(running), 3),
        "speedups": [round(value, 3) for value in whole],
        "earl_reached": sum(run["earl"]["reached"] for run in runs),
        "trl_reached": sum(run["trl"]["reached"] for run in runs),
    }


def model_process(directory: Path, task: str = "", questions: int = 0) -> float | None:
    """Makes the model that both start from in `directory`, or (with a task) returns the mean score on
    questions of the one that is there. In a process of its own, so that torch's threads end with it."""
    arguments = [task, str(questions)] if task else []
    command = [sys.executable, "-m", "benchmarks.e2e.model", str(directory), *arguments]
    return json.loads(last_line(command, "the model's process", MODEL_S, ROOT))["score"]
