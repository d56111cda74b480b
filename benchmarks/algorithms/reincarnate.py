"""Episodes until a win rate, of a policy that begins with a teacher and of one that begins with nothing.

the demo ─► its model teaches ─┬─► each seed: scratch         random legal play ─► GRPO
                               ├─► each seed: reincarnated    the teacher's episodes ─► GRPO and the teacher
                               └─► each seed: imitation       the same episodes ─► GRPO
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.algorithms.bounded_run import BoundedRun, bounded_run
from benchmarks.algorithms.command import BASE, names_of
from benchmarks.goals import missed_goals
from benchmarks.learning import published
from benchmarks.options import RESULTS, AsJson, Results, Seeds, whole_numbers
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted
from benchmarks.replay import GOAL_WIN_RATE, WINDOW_STEPS, until_goal
from earl.cli.report.data import read_run
from earl.cli.run.demo import RUN_FILE, example
from earl.cli.run.launch import overrides_of
from earl.config.load import Override, load_run
from earl.errors import EarlError, ProcessFailed
from earl.obs.metrics import read_lines
from earl.recorded_episodes import IMITATED
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
    "benchmarks/algorithms/reincarnate.py",
)
SCRATCH, REINCARNATED, IMITATION = "scratch", "reincarnated", "imitation"
ARMS = (SCRATCH, REINCARNATED, IMITATION)
# The seed of the model that teaches all seeds: its weights and games are no seed's.
TEACHER_SEED = 1000
# The part of the episodes from scratch that a teacher is to leave.
GOAL_RATIO = 0.2
# A run that takes longer is stopped, and has a failure.
LIMIT_S = 600.0
# Time limits nothing, or a busy machine would change what is compared; the last steps tell the win rate.
SAME: Sequence[Override] = (*BASE, ("scheduler.train_limit_s", "0"), ("evaluation.episodes", "0"))
COMPARES = (
    "The demo's run file (examples/tictactoe.toml), as it is, from random weights: scratch; with the same "
    "weights and a teacher of the same sizes, whose recorded episodes the warm-up imitates, and which then "
    "counts beside the rewards by QDagger's rule: reincarnated; and with the same imitation and no teacher "
    "afterwards, the honest rival, as it comes: imitation. The teacher is the model that a run of the demo "
    f"with seed {TEACHER_SEED} ends with. What an arm sets besides is in `keys`. episodes: until the mean "
    f"win rate of {WINDOW_STEPS} training steps is {GOAL_WIN_RATE}, null if it never is; those of the "
    "warm-up count, which are games of random legal play from scratch, and the teacher's recorded games "
    "elsewhere, each once however often it is imitated. What the teacher itself was trained on counts in no "
    "arm. ratio: "
    "an arm's episodes over those from scratch, of the same seed. seconds: of the whole command, the "
    "recording with it; seconds_to_goal: of training alone."
)


@app.command(
    cls=RecordedOverridableCommand,
    epilog="Any key of the demo's run file: --section.key VALUE, for all runs, e.g. --trainer.lr 1e-4",
)
def reincarnate(
    ctx: typer.Context,
    seeds: Seeds = "0,1,2",
    arms: Annotated[str, typer.Option(help=f"Runs to make of each seed: {', '.join(ARMS)}.")] = "",
    episodes: Annotated[int, typer.Option(min=1, max=16_384, help="Episodes that the teacher plays.")] = 1024,
    steps: Annotated[int, typer.Option(min=WINDOW_STEPS, help="Training steps from scratch.")] = 100,
    taught_steps: Annotated[
        int, typer.Option(min=WINDOW_STEPS, help="Training steps of the arms that imitate the teacher.")
    ] = 24,
    teacher: Annotated[
        Path | None, typer.Option(help="A model's directory that teaches, instead of the demo's own model.")
    ] = None,
    runs_dir: Annotated[str, typer.Option(help="Directory of runs instead of the run file's.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure how many episodes a policy needs that begins with a teacher, and one that begins with nothing.

    Each seed makes a whole run of the demo for each arm, in new processes, one after the other.
    """
    chosen = names_of(arms, ARMS)
    if IMITATION in chosen and REINCARNATED not in chosen:
        raise typer.BadParameter(f"{IMITATION} imitates the episodes of {REINCARNATED}", param_hint="arms")
    numbers = whole_numbers(seeds)
    given = overrides_of(ctx, runs_dir=runs_dir)
    model, figures = (str(teacher), {}) if teacher is not None else trained_teacher(given)
    about = {
        "compares": COMPARES,
        "teacher": figures,
        "teacher_episodes": episodes,
        "goal_win_rate": GOAL_WIN_RATE,
        "window_steps": WINDOW_STEPS,
        "keys": {arm: dict(arm_keys(arm, "TEACHER", episodes, "EPISODES")) for arm in ARMS},
        "overrides": {key: value for key, value in given if key != "runs_dir"},
    }
    runs: list[dict[str, Any]] = []

    def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(rows, numbers)

    with published("reincarnate", about, runs, summed, results, as_json=as_json):
        for seed in counted("seeds", numbers):
            recorded = ""
            for arm in chosen:
                count = steps if arm == SCRATCH else taught_steps
                keys = [("scheduler.steps", str(count)), *arm_keys(arm, model, episodes, recorded)]
                ended = one_run(arm, seed, [*keys, *given])
                if arm == REINCARNATED and ended is not None:
                    recorded = str(ended.directory / IMITATED)
                runs.append({"arm": arm, "seed": seed, **run_figures(ended)})


def trained_teacher(given: Sequence[Override]) -> tuple[str, dict[str, Any]]:
    """Trains the demo; the directory of its model, and its figures. Raises ProcessFailed."""
    config = load_run(example(RUN_FILE), [*BASE, *given, ("seed", str(TEACHER_SEED))])
    ended = bounded_run(config.model_copy(update={"name": free_name(config, "reincarnate-teacher")}), LIMIT_S)
    if ended.failure or not ended.model.is_dir():
        raise ProcessFailed(
            f"the teacher {ended.directory.name} {ended.failure or 'exported no model'}",
            f"without it nothing can be compared; {ended.directory} has its logs",
        )
    result = read_run(ended.directory).result
    figures = {key: result.get(key) for key in ("win_rate", "win_low", "win_high", "trained")}
    return str(ended.model), {**figures, "seconds": round(ended.seconds, 1)}


def arm_keys(arm: str, teacher: str, episodes: int, recorded: str) -> list[Override]:
    """The keys of an arm, laid over the demo's. recorded: the file of the teacher's episodes."""
    # What has seen good play need not explore as much.
    imitating = [("trainer.entropy_coefficient", "0")]
    keys: Mapping[str, list[Override]] = {
        SCRATCH: [],
        REINCARNATED: [
            *imitating,
            ("teacher.path", teacher),
            ("teacher.episodes", str(episodes)),
            ("teacher.wean", "true"),
            ("environment.reward_range", "[-1, 1]"),
        ],
        IMITATION: [*imitating, ("warmup.episodes", recorded)],
    }
    return keys[arm]


def one_run(arm: str, seed: int, overrides: Sequence[Override]) -> BoundedRun | None:
    """A whole run of an arm; None for the one that cannot be made."""
    try:
        config = load_run(example(RUN_FILE), [*SAME, ("seed", str(seed)), *overrides])
    except EarlError as error:
        typer.echo(f"earl: {arm} of seed {seed}: {error}", err=True)
        return None
    name = free_name(config, f"reincarnate-{arm}-seed{seed}")
    return bounded_run(config.model_copy(update={"name": name}), LIMIT_S)


def run_figures(ended: BoundedRun | None) -> dict[str, Any]:
    """The figures of a run, as far as it got."""
    if ended is None:
        return {"directory": "", "seconds": None, "failure": "not run", **counted_episodes([])}
    lines = list(read_lines(ended.directory / "metrics.jsonl"))
    return {
        "directory": ended.directory.name,
        "seconds": round(ended.seconds, 1),
        "failure": ended.failure,
        **counted_episodes(lines),
    }


def counted_episodes(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The episodes until the goal, and their parts: those of the warm-up, and those of training.

    lines: of metrics.jsonl. Recorded episodes count once; a warm-up without any has played what it imitated.
    """
    until = until_goal(lines)
    warmup = [line for line in lines if line["phase"] == "warmup"]
    train = {line["step"]: line for line in lines if line["phase"] == "train"}
    imitated = warmup[-1]["ledger"]["trained"] if warmup else 0
    recorded = warmup[-1].get("recorded_episodes") if warmup else None
    before = int(imitated if recorded is None else recorded)
    reached = until["steps_to_goal"]
    trained = train[sorted(train)[reached - 1]]["ledger"]["trained"] - imitated if reached else None
    return {
        "episodes": before + trained if trained is not None else None,
        "warmup_episodes": before,
        "training_episodes": trained,
        "recorded_reward_mean": warmup[-1].get("recorded_reward_mean") if warmup else None,
        "first_win_rate": train[min(train)]["win_rate"] if train else None,
        **{key: until[key] for key in ("steps_to_goal", "seconds_to_goal", "steps", "best_win_rate")},
        "teacher_steps": sum(line.get("teacher_weight", 0.0) > 0.0 for line in train.values()),
    }


def summary(runs: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """The ratios by seed, their worst and median, and the goals that are missed: each seed is to reach it."""
    ratios = {arm: ratios_of(runs, arm, seeds) for arm in (REINCARNATED, IMITATION)}
    figures: dict[str, Any] = {
        "ratios": ratios,
        "ratio_max": worst(ratios[REINCARNATED]),
        "ratio_median": median(ratios[REINCARNATED]),
        "imitation_ratio_max": worst(ratios[IMITATION]),
        "imitation_ratio_median": median(ratios[IMITATION]),
        "unreached": {
            arm: sum(run["arm"] == arm and run["episodes"] is None for run in runs) for arm in ARMS
        },
        "failures": [run["failure"] for run in runs if run["failure"]],
    }
    goals = {"ratio_max": GOAL_RATIO}
    return {**figures, "goals": goals, "missed": missed_goals(figures, goals)}


def ratios_of(runs: Sequence[Mapping[str, Any]], arm: str, seeds: Sequence[int]) -> list[float | None]:
    """An arm's episodes over those from scratch, by seed; None where either has not reached the goal."""
    episodes = {(run["arm"], run["seed"]): run["episodes"] for run in runs}
    pairs = [(episodes.get((arm, seed)), episodes.get((SCRATCH, seed))) for seed in seeds]
    return [round(taught / alone, 4) if taught and alone else None for taught, alone in pairs]


def worst(ratios: Sequence[float | None]) -> float | None:
    """The largest ratio; None if one is missing."""
    known = [ratio for ratio in ratios if ratio is not None]
    return max(known) if known and len(known) == len(ratios) else None


def median(ratios: Sequence[float | None]) -> float | None:
    """The median of the ratios; None if one is missing."""
    known = [ratio for ratio in ratios if ratio is not None]
    return statistics.median(known) if known and len(known) == len(ratios) else None
