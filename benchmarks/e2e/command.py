"""EARL against TRL's GRPOTrainer: wall time to the same reward, same model, task, batch and seeds.

One small Llama, taught a little, is saved once; both sides start from it, see the same questions in the
same order, and take the same step: `groups` questions with `group_size` answers, group-relative
advantages, one AdamW step at a constant learning rate on the clipped loss, mean over tokens, float32.
A side is done when the moving average of its training reward is at the threshold. Both have the whole
machine, one after the other.

TRL: one process, torch threads = cores, synchronous (it has no other way on one machine without vLLM),
answers from transformers' `generate` or from its continuous batching, whichever a short trial finds
faster. EARL: `earl train`, every service a process of its own, one thread for the engine and one for the
trainer, which is at most one step behind the sampler. Times count from each process's start; without
start-up, from when it could sample first. Every question has a seed of its own; the shortest ones, drawn
from few numbers, come up more than once, the same for both.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.children import last_line
from benchmarks.e2e import earl_side
from benchmarks.e2e.settings import Settings, Trace
from benchmarks.options import RESULTS, AsJson, Results, Seeds, whole_numbers
from benchmarks.record.checkout import ROOT
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.progress import phase
from benchmarks.record.results import publish
from earl.errors import ConfigError, ProcessFailed

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/dispatch",
    "earl/models",
    "earl/env",
    "earl/stack",
)

TRL_PYTHON = ROOT / ".venv-trl" / "bin" / "python"
GENERATIONS = ("generate", "continuous")
# Steps of the trial that finds TRL's faster way to generate; the first is not counted.
TRIAL_STEPS = 5
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
    threshold: Annotated[float, typer.Option(help="Mean training reward to reach.")] = DEFAULTS.threshold,
    steps: Annotated[int, typer.Option(help="The most steps of a side.")] = DEFAULTS.steps,
    limit_s: Annotated[float, typer.Option(help="The most seconds of a side and a seed.")] = DEFAULTS.limit_s,
    generation: Annotated[
        str, typer.Option(help="TRL's sampler: generate, continuous, or auto: the faster of them.")
    ] = "auto",
    start: Annotated[
        Path | None, typer.Option("--model", help="Model to start from instead of a model taught here.")
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="Directory to keep runs and models in.")] = None,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Compare EARL with TRL's GRPOTrainer: wall time to the same reward on the same task."""
    numbers = whole_numbers(seeds)
    if not TRL_PYTHON.exists():
        raise ConfigError(f"{TRL_PYTHON} is not there", "make it with: make setup-peers")
    settings = Settings(
        threshold=threshold, steps=steps, limit_s=limit_s, threads=len(os.sched_getaffinity(0))
    )
    directory = Path(tempfile.mkdtemp(prefix="earl-e2e-", dir=keep))
    try:
        result = compare(settings, numbers, directory, generation, start)
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    publish("e2e", result, results, as_json=as_json)


def compare(
    settings: Settings, seeds: list[int], directory: Path, generation: str, start: Path | None
) -> dict[str, Any]:
    """Every seed on both sides, one after the other; see `summary` for the figures."""
    started_s = time.monotonic()
    if start is None:
        say("teaching the model that both start from")
        phase("teaching the model")
        start = directory / "start"
        model_process(start)
    taught_s = time.monotonic() - started_s
    trials: dict[str, float] = {}
    if generation == "auto":
        for way in GENERATIONS:
            phase(f"trial of TRL's {way}")
            trial = replace(settings, steps=TRIAL_STEPS, threshold=2.0)
            try:
                trace = run_trl(trial, start, directory / f"trial-{way}", way)
            except ProcessFailed as error:
                say(f"TRL's {way} does not run here: {error}")
                continue
            trials[way] = trace.figures(trial)["step_s_median"]
            say(f"TRL's {way}: {trials[way]:.2f} s a step")
        if not trials:
            raise ProcessFailed("none of TRL's samplers runs here", "see the output above")
        generation = min(trials, key=lambda way: trials[way])
    runs = []
    for number, seed in enumerate(seeds):
        place = directory / f"seed-{seed}"
        # In turns, so that neither side always finds the machine as the other left it.
        order = ("earl", "trl") if number % 2 == 0 else ("trl", "earl")
        turn = f"seed {seed} ({number + 1} of {len(seeds)})"
        runs.append(one_seed(replace(settings, seed=seed), start, place, generation, order, turn))
    return {
        "compared": __doc__,
        "settings": settings.as_dict(),
        "taught_s": round(taught_s, 1),
        "trl_generation": generation,
        "trl_step_s_by_generation": trials,
        "runs": runs,
        **summary(runs),
    }


def one_seed(
    settings: Settings, start: Path, place: Path, generation: str, order: tuple[str, ...], turn: str
) -> dict[str, Any]:
    """Both sides on one seed: their figures, what was earned when, and on held-out questions at the end.

    turn: the seed as its phase names it.
    """
    sides: dict[str, Any] = {"seed": settings.seed}
    for side in order:
        phase(f"{turn}: {SIDES[side]}")
        if side == "earl":
            trace, final = earl_side.run(settings, start, place), earl_side.final_model(place)
        else:
            trace, final = run_trl(settings, start, place, generation), place / "trl.json.model"
        figures = trace.figures(settings)
        say(f"seed {settings.seed}, {side}: {figures}")
        sides[side] = {
            **figures,
            "held_out": model_process(final, HELD_OUT) if final.exists() else None,
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
        earl, trl = run["earl"], run["trl"]
        last = trl["times_s"][-1] if trl["times_s"] else 0.0
        seconds = trl["seconds"] if trl["reached"] else last
        without = trl["seconds_without_start"] if trl["reached"] else last - trl["start_s"]
        whole.append(seconds / earl["seconds"] if earl["reached"] else 0.0)
        running.append(without / earl["seconds_without_start"] if earl["reached"] else 0.0)
    return {
        "speedup_vs_trl": round(statistics.median(whole), 3),
        "speedup_vs_trl_without_start": round(statistics.median(running), 3),
        "speedups": [round(value, 3) for value in whole],
        "earl_reached": sum(run["earl"]["reached"] for run in runs),
        "trl_reached": sum(run["trl"]["reached"] for run in runs),
    }


def model_process(directory: Path, questions: int = 0) -> float | None:
    """Makes the model that both start from in `directory`, or (questions > 0) returns the mean score of the
    one that is there. In a process of its own, so that torch's threads end with it."""
    command = [sys.executable, "-m", "benchmarks.e2e.model", str(directory), str(questions)]
    return json.loads(last_line(command, "the model's process", MODEL_S, ROOT))["score"]


def run_trl(settings: Settings, model: Path, directory: Path, generation: str) -> Trace:
    """TRL's side in its own process and environment, ended at twice its limit whatever it does."""
    directory.mkdir(parents=True, exist_ok=True)
    result, request = directory / "trl.json", directory / "trl-request.json"
    values = {
        "settings": settings.as_dict(),
        "model": str(model),
        "seeds": earl_side.questions(settings),
        "generation": generation,
        "started_s": time.monotonic(),
        "result": str(result),
    }
    request.write_text(json.dumps(values), encoding="utf-8")
    command = [str(TRL_PYTHON), "-m", "benchmarks.e2e.trl_side", str(request)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    log = directory / "trl.log"
    limit_s = 2 * settings.limit_s + 120
    try:
        with log.open("w") as output:
            subprocess.run(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, check=True, timeout=limit_s
            )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        last = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise ProcessFailed(f"TRL's process: {error}; its last output: {last}", f"run {command}") from error
    return Trace(**json.loads(result.read_text(encoding="utf-8")))


def say(text: str) -> None:
    sys.stderr.write(f"e2e: {text}\n")
    sys.stderr.flush()
