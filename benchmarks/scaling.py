"""Tokens per second over the number of rollout workers: whole runs of the demo with 1, 2, 4 … 64 of them.

imitation once ─► paced    1, 2, 4 … workers, each an engine on a simulated device of the same speed
               ─► real     1 and 2 workers, each an engine at this machine's own speed

A batch has as many games for each worker in every run, so that every worker has the same to do.
"""

from __future__ import annotations

import secrets
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import footprint
from benchmarks.algorithms.command import warm_start
from benchmarks.children import MeasurementWrong, late
from benchmarks.learning import published
from benchmarks.observed_run import ObservedRun
from benchmarks.options import RESULTS, AsJson, Results, whole_numbers
from benchmarks.pool_runs import over_pace_part
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted
from benchmarks.usage import UsageSample, used
from earl.cli.report.data import read_run
from earl.cli.run.demo import RUN_FILE, example
from earl.cli.run.launch import overrides_of
from earl.config.load import Override, load_run
from earl.errors import EarlError

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/bus",
    "earl/dispatch",
    "earl/env",
    "earl/pacing",
    "earl/rpc",
    "earl/stack",
    "benchmarks/scaling.py",
)
COMPARES = (
    "Tokens trained on per second by whole runs of the demo (examples/tictactoe.toml) from the same model, "
    "with so many rollout workers on one machine. paced: SIMULATED TIMES, each worker has one engine on a "
    "paced device (docs/paced.md) of `tokens_per_s_each`, whose steps are computed for real and then wait; "
    "services, environments, data plane, ledger, weights and trainer are real, and share this machine's "
    "cores with the engines. real: engines at the machine's own speed. A batch has 8 games for each worker, "
    "trained one step behind. Figures are of the time between two training steps, from the end of the "
    "second to that of the last but one. of_linear: tokens per second over those that the run with the "
    "fewest workers of its kind has for each worker, times the workers. cores: processor seconds per second "
    "of all processes; cpu_us_by_kind: microseconds of processor time a token, by kind of process. "
    "over_pace: the part of steps that took longer to compute than their device takes. workers_at_90: the "
    "most workers up to which every paced run has at least 0.9 of linear."
)
PACED, REAL = "paced", "real"
SEQUENCES = 8
# Below this part of linear a number of workers no longer scales.
SCALES = 0.9
SETTINGS: Sequence[Override] = (
    ("warmup.batches", "0"),
    ("evaluation.at_start", "false"),
    ("evaluation.at_end", "false"),
    ("scheduler.selector", "static"),
    ("scheduler.profile_s", "0"),
    ("scheduler.train_limit_s", "0"),
    ("scheduler.group_size", str(SEQUENCES)),
    # What is trained changes nothing here, and one optimizer step takes as long for every batch.
    ("trainer.minibatches", "1"),
    ("trainer.threads", "1"),
    ("rollout.engines", "1"),
    ("rollout.threads", "1"),
    ("rollout.max_sequences", str(SEQUENCES)),
    ("rollout.episodes", str(SEQUENCES)),
)
# Limits of a run: to start and end, for each worker, and for each training step.
START_S, WORKER_S, STEP_S, POLL_S = 300.0, 15.0, 60.0, 0.25
# Training steps at either end of a run that are not measured.
LEFT_OUT = 1
NO_FIGURES = {"tokens_per_s": None, "cores": None, "over_pace": None, "cpu_us_by_kind": {}}


@app.command(
    cls=RecordedOverridableCommand, epilog="Example: earl bench scaling --workers 1,4,16 --steps 12 --json"
)
def scaling(
    ctx: typer.Context,
    workers: Annotated[
        str, typer.Option(help="Rollout workers, separated by commas, or none.")
    ] = "1,2,4,8,16,32,64",
    real: Annotated[str, typer.Option(help="The same of engines that are not paced.")] = "1,2",
    steps: Annotated[int, typer.Option(min=6, help="Training steps of each run.")] = 12,
    tokens_per_s: Annotated[
        float, typer.Option(min=1.0, help="Tokens that a paced device gives to 8 sequences in a second.")
    ] = 80.0,
    runs_dir: Annotated[str, typer.Option(help="Directory of the imitation's run.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure tokens per second over the number of rollout workers, on paced devices and on real ones."""
    numbers = {kind: numbers_of(text) for kind, text in ((PACED, workers), (REAL, real))}
    given = overrides_of(ctx)
    with tempfile.TemporaryDirectory(prefix="earl-bench-") as made:
        table = Path(made) / "device.csv"
        table.write_text(device_table(tokens_per_s), encoding="utf-8")
        keys = {PACED: [("paced.table", str(table))], REAL: []}
        for kind, counts in numbers.items():
            for count in counts:  # reports wrong overrides before anything is started
                load_run(example(RUN_FILE), [*SETTINGS, *keys[kind], *of_workers(count, steps), *given])
        model = warm_start([("runs_dir", runs_dir)] if runs_dir else [], 0)["model"]
        runs: list[dict[str, Any]] = []
        about = {"compares": COMPARES, "steps": steps, "tokens_per_s_each": tokens_per_s}
        turns = [(kind, count) for kind, counts in numbers.items() for count in counts]
        with published("scaling", about, runs, summary, results, as_json=as_json):
            for kind, count in counted("runs", turns):
                overrides = [*SETTINGS, *keys[kind], ("model.path", model), *of_workers(count, steps), *given]
                runs.append({"kind": kind, "workers": count, **one_run(kind, count, steps, overrides)})


def numbers_of(text: str) -> list[int]:
    """ "4,1" as [1, 4], "none" as []; typer.BadParameter for anything else.

    >>> numbers_of("4,1")
    [1, 4]
    """
    return [] if text == "none" else sorted(set(whole_numbers(text)))


def device_table(tokens_per_s: float) -> str:
    """A pace table in which one device gives so many tokens a second to SEQUENCES sequences, and no layout
    of several devices is legal.

    >>> print(device_table(80.0))
    stage,tp,context_tokens,concurrency,tokens_per_device_s
    rollout,1,128,8,80.0
    <BLANKLINE>
    """
    header = "stage,tp,context_tokens,concurrency,tokens_per_device_s"
    return f"{header}\nrollout,1,128,{SEQUENCES},{tokens_per_s}\n"


def of_workers(count: int, steps: int) -> list[Override]:
    """The keys of a run with so many workers: SEQUENCES games for each of them in every batch."""
    return [
        ("rollout.workers", str(count)),
        ("scheduler.batch_groups", str(count)),
        ("scheduler.steps", str(steps)),
        ("stack.start_s", f"{START_S + WORKER_S * count:g}"),
    ]


def one_run(kind: str, count: int, steps: int, overrides: Sequence[Override]) -> dict[str, Any]:
    """The figures of a run; one that fails, or is too slow, has its failure."""
    about = f"with {count} {kind} workers"
    limit_s = START_S + WORKER_S * count + STEP_S * steps
    mark = f"bench-{secrets.token_hex(4)}"
    try:
        with ExitStack() as stack:
            runs: list[ObservedRun] = []
            stack.callback(lambda: [run.gone() for run in runs])  # once its place has ended it
            place = stack.enter_context(footprint.fresh("scaling", mark, "*"))
            run = ObservedRun(example(RUN_FILE), about, place, overrides)
            runs.append(run)
            until = time.monotonic() + limit_s
            while run.poll():
                if time.monotonic() > until:
                    raise late(f"the run {about}", limit_s)
                time.sleep(POLL_S)
            late_part = over_pace_part(read_run(run.directory))
            return run_figures(run.usage.samples) | {"over_pace": late_part, "failure": ""}
    except EarlError as error:
        return {**NO_FIGURES, "failure": str(error)}


def run_figures(samples: Sequence[UsageSample]) -> dict[str, Any]:
    """Figures between the training steps that are measured. Raises MeasurementWrong where there are none."""
    kept = samples[LEFT_OUT : len(samples) - LEFT_OUT]
    if len(kept) < 2:
        raise MeasurementWrong(
            f"only {len(samples)} ends of training steps were observed", "give more --steps"
        )
    total = used(kept[0], kept[-1])
    return {
        "tokens_per_s": total.tokens_per_s,
        "cores": sum(total.cpu_s.values()) / total.seconds,
        "cpu_us_by_kind": total.cpu_us_by_kind,
        "steps": total.steps,
        "tokens": total.tokens,
        "seconds": total.seconds,
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each kind's part of linear, and up to how many workers the paced ones scale."""
    parts = {kind: of_linear([run for run in runs if run["kind"] == kind]) for kind in (PACED, REAL)}
    scaling_to = 0
    for count, part in parts[PACED].items():
        if part is None or part < SCALES:
            break
        scaling_to = int(count)
    rates = [run["tokens_per_s"] for run in runs if run["kind"] == PACED and run["tokens_per_s"]]
    costs = [sum(run["cpu_us_by_kind"].values()) for run in runs if run["kind"] == PACED and run["cores"]]
    return {
        "of_linear": parts[PACED],
        "of_linear_real": parts[REAL],
        "workers_at_90": scaling_to,
        "most_tokens_per_s": max(rates, default=None),
        "cpu_us_per_token": statistics.median(costs) if costs else None,
        "failed": [f"{run['workers']} {run['kind']}" for run in runs if run["failure"]],
    }


def of_linear(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Tokens per second by number of workers, over those of the fewest workers' run for each of its workers,
    times the workers; None for a run that failed.

    >>> of_linear([{"workers": 1, "tokens_per_s": 50.0}, {"workers": 4, "tokens_per_s": 190.0}])
    {'1': 1.0, '4': 0.95}
    """
    first = next((run for run in runs if run["tokens_per_s"]), None)
    if first is None:
        return {str(run["workers"]): None for run in runs}
    each = first["tokens_per_s"] / first["workers"]
    return {
        str(run["workers"]): round(run["tokens_per_s"] / (each * run["workers"]), 3)
        if run["tokens_per_s"]
        else None
        for run in runs
    }
