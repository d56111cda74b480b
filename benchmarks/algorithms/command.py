"""Measures what each algorithm learns of the demo's environment, over seeds, from the same warm start.

seed ─► imitation, once ─► its model ─┬─► grpo ─► evaluation
                                      ├─► rloo ─► evaluation
                                      └─► ...                    a result for each algorithm, when it ends
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.algorithms.bounded_run import BoundedRun, bounded_run
from benchmarks.algorithms.table import ALGORITHMS, KnownAlgorithm
from benchmarks.goals import missed_goals
from benchmarks.options import RESULTS, AsJson, Results, Seeds, whole_numbers
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted
from benchmarks.record.results import publish
from earl.cli.report.curves import TRAIN, smooth
from earl.cli.report.data import RecordedRun, read_run
from earl.cli.run.demo import RUN_FILE, example
from earl.cli.run.launch import OVERRIDES, overrides_of
from earl.config.load import Override, load_run
from earl.config.run import RunConfig
from earl.errors import EarlError, ProcessFailed
from earl.stack.rundir import free_name

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/dispatch",
    "earl/fragments",
    "earl/models",
    "earl/env",
    "earl/stack",
    "examples/tictactoe.toml",
    "benchmarks/algorithms",
)
# The win rate whose first time is measured, as a mean over so many training steps.
REACHED, WINDOW_STEPS = 0.9, 8
# The figures of a run that there was not.
NO_RUN: Mapping[str, Any] = {"directory": "", "win_rate": None, "reached_s": None, "seconds": None}
# No profile, and patience with a machine that is busy.
BASE: Sequence[Override] = (("scheduler.profile_s", "0"), ("stack.start_s", "180"))
# The most that a run may take; one that takes longer than LIMIT_S is stopped.
SECONDS_MAX, LIMIT_S = 300.0, 600.0
COMPARES = (
    "The demo's run file (examples/tictactoe.toml) with the keys of one algorithm laid over it, which `keys` "
    "has; everything else is the same for all, learning rate and entropy included, which were chosen for "
    "GRPO. Each seed imitates random legal play once in a call, with deterministic = true, and every "
    "algorithm begins with that model: start_win_rate is its win rate, start_digest its file's SHA-256, "
    "start_seconds what it took; no run's seconds have that in them. win_rate: over the evaluation's games "
    "at the end, the same for all algorithms of a seed. reached_s: from the run's start until the mean win "
    f"rate of {WINDOW_STEPS} training steps is {REACHED}; null if it never is. seconds: from the command's "
    f"start to its end. A run that fails, or is stopped after {LIMIT_S:g} s, has a failure, and a win rate "
    "of 0 in what is over seeds."
)


@app.command(
    cls=RecordedOverridableCommand,
    epilog="Example: earl bench algorithms --only grpo,rloo. Any key of examples/tictactoe.toml: "
    "--section.key VALUE",
)
def algorithms(
    ctx: typer.Context,
    only: Annotated[str, typer.Option(help=f"Some of {', '.join(ALGORITHMS)}; else all.")] = "",
    seeds: Seeds = "0,1,2",
    runs_dir: Annotated[str, typer.Option(help="Directory of runs instead of the run file's.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure what each algorithm learns of tic-tac-toe from the same warm start, over seeds.

    Each algorithm has a result of its own, saved when its seeds have ended: a call may be continued with
    --only.
    """
    names = names_of(only)
    given = overrides_of(ctx, runs_dir=runs_dir)
    numbers = whole_numbers(seeds)
    starts = {seed: warm_start(given, seed) for seed in counted("warm starts", numbers)}
    saved: dict[str, Any] = {}
    for name in counted("algorithms", names):
        algorithm = ALGORITHMS[name]
        runs = [one_seed(name, algorithm, given, seed, starts) for seed in numbers]
        about = {"compares": COMPARES, "algorithm": name, "about": algorithm.about, "keys": algorithm.keys,
                 "overrides": dict(ctx.meta.get(OVERRIDES, []))}  # fmt: skip
        figures = {**about, "runs": runs, **summary(algorithm, runs)}
        path = publish("algorithms", figures, results, as_json=False)
        saved[name] = json.loads(path.read_text(encoding="utf-8"))
    if as_json:
        missed = {name: result["missed"] for name, result in saved.items() if result["missed"]}
        print(json.dumps({"algorithms": saved, "missed": missed}))


def names_of(only: str, names: Sequence[str] = tuple(ALGORITHMS)) -> list[str]:
    """The names of --only, all if it is empty. Raises typer.BadParameter for a name that there is not."""
    listed = [part.strip() for part in only.split(",")] if only else list(names)
    for name in listed:
        if name not in names:
            raise typer.BadParameter(f"--only {name!r} is none of {', '.join(names)}")
    return listed


def warm_start(given: Sequence[Override], seed: int) -> dict[str, Any]:
    """Imitates legal play; the model that algorithms begin with, and its figures. Raises ProcessFailed."""
    keys = [
        ("scheduler.steps", "0"), ("scheduler.staleness", "0"), ("scheduler.train_limit_s", "0"),
        ("scheduler.selector", "static"), ("evaluation.at_end", "false"), ("seed", str(seed)),
    ]  # fmt: skip
    config = load_run(example(RUN_FILE), [*BASE, *given, *keys])
    name = free_name(config, f"algorithms-start-seed{seed}")
    ended = bounded_run(config.model_copy(update={"name": name, "deterministic": True}), LIMIT_S)
    weights = ended.model / "model.safetensors"
    if ended.failure or not weights.is_file():
        raise ProcessFailed(
            f"the warm start {name} {ended.failure or 'exported no model'}",
            f"without it nothing can be compared; {ended.directory} has its logs",
        )
    judged = [line["win_rate"] for line in read_run(ended.directory).evaluations if line["name"] == "start"]
    return {
        "model": str(ended.model),
        "start_win_rate": judged[0] if judged else None,
        "start_digest": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "start_seconds": round(ended.seconds, 1),
    }


def one_seed(
    name: str,
    algorithm: KnownAlgorithm,
    given: Sequence[Override],
    seed: int,
    starts: Mapping[int, Mapping[str, Any]],
) -> dict[str, Any]:
    """The figures of an algorithm's run; one that cannot be made, or fails, has a failure."""
    start = dict(starts[seed])
    keys = [
        *BASE, ("seed", str(seed)), ("model.path", start.pop("model")), ("warmup.batches", "0"),
        ("evaluation.at_start", "false"),
    ]  # fmt: skip
    figures: dict[str, Any] = {"seed": seed, **start}
    try:
        demo = load_run(example(RUN_FILE), [*given, ("seed", str(seed))])
        teacher = teacher_of(demo) if algorithm.needs_teacher else ""
        # What the command line gives is of more weight than the algorithm's own keys.
        config = load_run(example(RUN_FILE), [*keys, *algorithm.overrides(teacher), *given])
        config = config.model_copy(update={"name": free_name(config, f"{stem(name)}-seed{seed}")})
        ended = bounded_run(config, LIMIT_S)
        return figures | ended_figures(ended)
    except EarlError as error:
        return {**figures, **NO_RUN, "failure": str(error)}


def stem(name: str) -> str:
    """The name of an algorithm's runs: those of directories take no "+"."""
    return f"algorithms-{name.replace('+', 'p')}"


def teacher_of(config: RunConfig) -> str:
    """The newest model that GRPO has made of a seed in this directory of runs. Raises ProcessFailed."""
    models = Path(config.runs_dir).glob(f"{stem('grpo')}-seed{config.seed}*/model-final")
    newest = max(models, key=lambda model: model.stat().st_mtime, default=None)
    if newest is None:
        raise ProcessFailed(
            f"no run of grpo with seed {config.seed} in {config.runs_dir} has left a model that could teach",
            "run it first, with --only grpo",
        )
    return str(newest.resolve())


def ended_figures(ended: BoundedRun) -> dict[str, Any]:
    """The figures of a run in its directory, if it got so far."""
    figures: dict[str, Any] = {
        **NO_RUN,
        "directory": ended.directory.name,
        "seconds": round(ended.seconds, 1),
        "failure": ended.failure,
    }
    try:
        run = read_run(ended.directory)
    except EarlError:
        return figures
    steps = run.points("time_s", phase=TRAIN)
    kept = ("win_rate", "win_low", "win_high", "illegal_rate", "trained")
    return figures | {
        "steps": len(steps),
        "train_s": round(max((value for _, value in steps), default=0.0), 1),
        "reached_s": reached_s(run),
        **({key: run.result.get(key) for key in kept} if not ended.failure else {}),
    }


def reached_s(run: RecordedRun) -> float | None:
    """Seconds of the run until the mean win rate of WINDOW_STEPS steps was REACHED; None if it never was."""
    rates = run.points("win_rate", phase=TRAIN)
    ends_s = dict(run.points("time_s", phase=TRAIN))
    means = smooth(rates, WINDOW_STEPS)[WINDOW_STEPS - 1 :]
    return next((round(ends_s[step], 1) for step, mean in means if mean >= REACHED), None)


def summary(algorithm: KnownAlgorithm, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures over seeds, the goals, and those that are missed; a run without a win rate counts as 0."""
    rates = [run["win_rate"] or 0.0 for run in runs]
    seconds = [run["seconds"] for run in runs if run["seconds"] is not None]
    reached = [run["reached_s"] for run in runs if run["reached_s"] is not None]
    figures = {
        "seeds": len(runs),
        "win_rate_min": min(rates),
        "win_rate_median": statistics.median(rates),
        "seeds_reached": sum(rate >= algorithm.least for rate in rates),
        "reached_s_median": statistics.median(reached) if len(reached) == len(runs) else None,
        "seeds_at_90": len(reached),
        "seconds_max": max(seconds, default=None),
        "failures": [run["failure"] for run in runs if run["failure"]],
    }
    goals = {"seeds_reached": float(algorithm.seeds_needed(len(runs))), "seconds_max": SECONDS_MAX}
    return {**figures, "least": algorithm.least, "goals": goals, "missed": missed_goals(figures, goals)}
