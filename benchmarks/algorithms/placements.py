"""The weights of each algorithm after every step, in each placement: they are to be the same bits.

algorithm ─► separate ─► digests ┐
          ─► shared   ─► digests ├─► equal, step by step?    seconds of a step of each
          ─► actors   ─► digests ┘
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.algorithms.bounded_run import bounded_run
from benchmarks.algorithms.command import BASE, names_of, stem
from benchmarks.algorithms.small_demo import small_demo
from benchmarks.algorithms.table import ALGORITHMS
from benchmarks.goals import missed_goals
from benchmarks.learning import published
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted
from earl.cli.report.curves import TRAIN
from earl.cli.report.data import read_run
from earl.cli.run.launch import overrides_of
from earl.config.load import Override
from earl.config.run import RunConfig
from earl.errors import EarlError
from earl.models.create import create_model
from earl.stack.rundir import free_name

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/config/distribution.py",
    "earl/dispatch",
    "earl/fragments",
    "earl/models",
    "earl/env",
    "earl/stack",
    "examples/tictactoe.toml",
    "benchmarks/algorithms",
)
STEPS = 10
# A run that takes longer is stopped.
LIMIT_S = 600.0
# In the second "shared", rollout and trainer take turns: without a GPU that alone differs from "separate".
PLACEMENTS: Mapping[str, Sequence[Override]] = {
    "separate": [("stack.placement", "separate")],
    "shared": [("stack.placement", "shared")],
    "shared-in-turns": [("stack.placement", "shared"), ("stack.share", "alternate")],
    "actors": [("stack.placement", "actors")],
}
PLACED = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.placed)
# What makes the demo's run file small, and its steps depend on no clock.
SETTINGS: Sequence[Override] = (
    *BASE,
    ("deterministic", "true"),
    ("rollout.threads", "1"),
    ("trainer.threads", "1"),
    ("warmup.batches", "2"),
    ("warmup.batch_episodes", "256"),
    ("warmup.minibatches", "8"),
    ("scheduler.batch_groups", "8"),
    ("scheduler.steps", str(STEPS)),
    ("scheduler.staleness", "0"),
    ("scheduler.train_limit_s", "0"),
    ("scheduler.selector", "static"),
    ("evaluation.episodes", "0"),
    ("dashboard.bind", ""),
)
COMPARES = (
    "Runs of the demo's environment with deterministic = true, the same seed, warm-up, trainer layout and "
    "threads, and stack.placement as all that differs: separate; shared; shared-in-turns (shared, with "
    'stack.share = "alternate": on a machine without a GPU, shared alone starts the same processes as '
    "separate); actors: four workers of one engine. digest_equal: the weights' digests after every step, "
    "warm-up included, are the same in all of them, of a run that is complete, and no two steps have the "
    "same. distinct: no two algorithms have the same weights in the end. step_s: the median of seconds "
    "between the ends of training steps: sampling and training in turns, so their sum. On few cores, "
    "processes of four workers share what one has alone."
)


@app.command(
    cls=RecordedOverridableCommand,
    epilog="Example: earl bench placements --only grpo,rloo. Any key of examples/tictactoe.toml: "
    "--section.key VALUE",
)
def placements(
    ctx: typer.Context,
    only: Annotated[str, typer.Option(help=f"Some of {', '.join(PLACED)}; else all.")] = "",
    runs_dir: Annotated[str, typer.Option(help="Directory of runs instead of the run file's.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Compare the weights of deterministic runs in each placement, and the seconds of their steps."""
    names = names_of(only, PLACED)
    given = overrides_of(ctx, runs_dir=runs_dir)
    # Before anything is run: what is wrong on the command line ends it.
    config = placed_config([*PLACEMENTS["separate"], *given])
    rows: list[dict[str, Any]] = []
    about = {"compares": COMPARES, "goals": goals(len(names)), "steps": config.scheduler.steps}

    def summed(_: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(rows, goals(len(names)))

    with (
        tempfile.TemporaryDirectory(prefix="earl-bench-") as made,
        published("placements", about, rows, summed, results, as_json=as_json),
    ):
        teacher = create_model(Path(made) / "teacher", config.model, config.seed + 1, config.context_tokens)
        for name in counted("algorithms", names):
            keys = ALGORITHMS[name].overrides(str(teacher))
            runs = {
                way: one_run(f"{stem(name)}-{way}", [*PLACEMENTS[way], *keys, *given]) for way in PLACEMENTS
            }
            rows.append(row(name, runs, config.scheduler.steps))


def placed_config(overrides: Sequence[Override]) -> RunConfig:
    """The demo's run file, small and deterministic, without a placement of its own. Raises ConfigError."""
    return small_demo([*SETTINGS, *overrides])


def one_run(name: str, overrides: Sequence[Override]) -> dict[str, Any]:
    """The digests after each step and the seconds of a step of a whole run; a failure is a figure, too."""
    failed = {"digests": [], "trained": 0, "step_s": None, "seconds": None}
    try:
        config = placed_config(overrides)
    except EarlError as error:
        return {"directory": "", **failed, "failure": str(error)}
    ended = bounded_run(config.model_copy(update={"name": free_name(config, name)}), LIMIT_S)
    try:
        run = read_run(ended.directory)
    except EarlError as error:
        return {"directory": ended.directory.name, **failed, "failure": ended.failure or str(error)}
    ends_s = [value for _, value in run.points("time_s", phase=TRAIN)]
    steps_s = [after - before for before, after in itertools.pairwise(ends_s)]
    return {
        "directory": ended.directory.name,
        # The warm-up's steps are the first of them.
        "digests": [value for _, value in run.points("weights_digest")],
        "trained": len(ends_s),
        "step_s": round(statistics.median(steps_s), 3) if steps_s else None,
        "seconds": round(ended.seconds, 1),
        "failure": ended.failure,
    }


def row(name: str, runs: Mapping[str, Mapping[str, Any]], steps: int) -> dict[str, Any]:
    """The figures of an algorithm. runs: by placement. differs_at: the first step with another digest."""
    digests = [run["digests"] for run in runs.values()]
    whole = all(not run["failure"] and run["trained"] == steps for run in runs.values())
    pairs = list(zip(*digests, strict=False))
    differs = next((number for number, each in enumerate(pairs, 1) if len(set(each)) > 1), None)
    same_length = len({len(each) for each in digests}) == 1
    # Weights that stand still would be equal for no good reason.
    moves = len(set(digests[0])) == len(digests[0]) >= steps
    return {
        "algorithm": name,
        "digest_equal": float(whole and same_length and moves and differs is None),
        "differs_at": differs,
        "step_s": {way: run["step_s"] for way, run in runs.items()},
        "failures": [f"{way}: {run['failure']}" for way, run in runs.items() if run["failure"]],
        "placements": {way: dict(run) for way, run in runs.items()},
    }


def goals(algorithms: int) -> dict[str, float]:
    return {"digests_equal": float(algorithms), "distinct": 1.0}


def summary(rows: Sequence[Mapping[str, Any]], of_figures: Mapping[str, float]) -> dict[str, Any]:
    """digests_equal: algorithms whose placements agree."""
    ends = [row["placements"]["separate"]["digests"][-1:] for row in rows]
    last = [digests[0] for digests in ends if digests]
    figures = {
        "algorithms": [row["algorithm"] for row in rows],
        "digests_equal": float(sum(row["digest_equal"] for row in rows)),
        "distinct": float(len(set(last)) == len(last)),
        "failures": [f"{row['algorithm']}, {text}" for row in rows for text in row["failures"]],
    }
    return {**figures, "missed": missed_goals(figures, of_figures)}
