"""Measures how well a policy plays Connect Four that has learned from nobody but itself.

legal play ─► self-play ─► judged against a random player and one of one ply, in both seats
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.goals import missed_goals
from benchmarks.judged_points import (
    JUDGED_SEED,
    judged_points,
    mean,
    points_of_reward,
)
from benchmarks.learning import figure_over_seeds, published, to_end
from benchmarks.options import RESULTS, AsJson, Results, Seeds, whole_numbers
from benchmarks.record.checkout import ROOT
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted, phase
from earl.cli.lib.figures import figures
from earl.cli.run.launch import overrides_of
from earl.config.environment import EnvironmentConfig
from earl.config.load import load_run
from earl.config.mixture import entry_of
from earl.config.run import RunConfig
from earl.env.serve import load
from earl.stack.rundir import free_name
from services.scheduler.ledger.intervals import mean_interval
from services.scheduler.state.seeds import env_seed

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/dispatch",
    "earl/models",
    "earl/env",
    "earl/stack",
    "examples/selfplay.toml",
    "benchmarks/judged_points.py",
    "benchmarks/selfplay.py",
)
RUN_FILE = ROOT / "examples" / "selfplay.toml"
OPPONENTS = ("random", "one_ply")
SEATS = (0, 1)
# In every seed, seconds at most and the others at least.
GOALS = {"vs_random": 0.95, "vs_one_ply": 0.35, "seconds_max": 1200.0}

COMPARES = (
    "A policy from random weights imitates uniformly random legal play of Connect Four and then plays "
    "against itself, from boards with up to as many random moves as the run file's task says; no scripted"
    " player moves in any game that it learns from. Its newest version is then judged against a random "
    "player and a player of one ply (takes a win, else blocks one, else moves at random), half of the "
    "games in each seat, from the empty board, against dice that no run has trained on or was chosen by. "
    "A score is the mean of a game's points: 1 for a win, 1/2 for a draw; an illegal move loses. "
    "vs_random, vs_one_ply: the scores, each with its 95 % interval; random_vs_random and "
    "random_vs_one_ply: what a uniformly random legal player scores in the same seats, beside them. Over "
    "seeds, the figures are those of the worst seed. seconds: of the training run, from the command's "
    "start to the end of its final evaluation; the judging comes in addition."
)


@app.command(
    cls=RecordedOverridableCommand,
    epilog="Any key of examples/selfplay.toml: --section.key VALUE, e.g. --scheduler.steps 20",
)
def selfplay(
    ctx: typer.Context,
    seeds: Seeds = "0,1,2",
    games: Annotated[int, typer.Option(min=2, help="Games against each scripted player.")] = 1024,
    runs_dir: Annotated[str, typer.Option(help="Directory of runs instead of the run file's.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure how well self-play alone plays Connect Four, against players that it has never met.

    Each seed is a whole run in new processes, and an evaluation.
    """
    given = overrides_of(ctx, runs_dir=runs_dir)
    config = load_run(RUN_FILE, given)
    settings = config.model_dump(mode="json", exclude={"seed", "name", "runs_dir"}, exclude_defaults=True)
    about = {"compares": COMPARES, "goals": GOALS, "settings": settings, "games": games}
    runs: list[dict[str, Any]] = []
    with published("selfplay", about, runs, summary, results, as_json=as_json):
        for seed in counted("seeds", whole_numbers(seeds)):
            runs.append(measured(load_run(RUN_FILE, [*given, ("seed", str(seed))]), games))


def measured(config: RunConfig, games: int) -> dict[str, Any]:
    """The figures of one seed. Ends the command if a run is stopped."""
    phase(f"seed {config.seed}")
    config = config.model_copy(update={"name": free_name(config, f"{config.name}-seed{config.seed}")})
    outcome = to_end(config)
    directory = Path(config.runs_dir) / config.name
    phase(f"seed {config.seed}, judging")
    tasks = judged_tasks()
    environment = played_in(config).model_copy(update={"evaluation_tasks": tasks})
    judged = config.model_copy(update={"environment": environment})
    model, name = directory / "model-final", f"{directory.name}-judged"
    played = judged_points(judged, model, name, games * len(OPPONENTS))
    return {
        **figures(outcome, config.seed),
        **by_opponent("vs", played, tasks),
        **by_opponent("random_vs", random_points(config, games * len(OPPONENTS), tasks), tasks),
    }


def played_in(config: RunConfig) -> EnvironmentConfig:
    return entry_of(config.mixture, "").section


def judged_tasks() -> list[dict[str, Any]]:
    """Tables that are laid over the task in the games that judge, in turns: each opponent in each seat."""
    return [{"opponent": opponent, "player": seat, "opening": 0} for opponent in OPPONENTS for seat in SEATS]


def by_opponent(name: str, points: Sequence[float], tasks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Scores against each opponent with their intervals, and of each seat; game i is of the task i % n.

    A failed game, NaN, does not count; null where all failed.
    """
    scores: dict[str, Any] = {}
    for opponent in OPPONENTS:
        of_seat = {
            task["player"]: points[place :: len(tasks)]
            for place, task in enumerate(tasks)
            if task["opponent"] == opponent
        }
        done = [value for values in of_seat.values() for value in values if not math.isnan(value)]
        interval = mean_interval(done) if done else None
        key = f"{name}_{opponent}"
        scores[key] = mean(done)
        scores[f"{key}_low"] = _or_none(interval.low) if interval else None
        scores[f"{key}_high"] = _or_none(interval.high) if interval else None
        scores[f"{key}_games"] = len(done)
        scores[f"{key}_by_seat"] = [mean(of_seat[seat]) for seat in SEATS]
    return scores


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def random_points(config: RunConfig, games: int, tasks: Sequence[dict[str, Any]]) -> list[float]:
    """Points of a uniformly random legal player in so many games, played here in this process."""
    section = played_in(config)
    environment: Any = load(section.serve)[section.name]()
    points: list[float] = []
    for index in range(games):
        seed = env_seed(config.seed + JUDGED_SEED, "evaluate", index)
        dice = random.Random(f"random/{seed}")
        shown = environment.reset(seed, section.task | tasks[index % len(tasks)])
        while True:
            result = environment.step(dice.choice(shown.legal_actions))
            if result.done:
                break
            shown = result.observation
        points.append(points_of_reward(result.reward))
    return points


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst seed decides; null where a seed has no figure. missed: names of goals that are not met."""
    worst = {
        "seeds": len(runs),
        "vs_random": figure_over_seeds(runs, "vs_random", min),
        "vs_one_ply": figure_over_seeds(runs, "vs_one_ply", min),
        "random_vs_one_ply": figure_over_seeds(runs, "random_vs_one_ply", max),
        "seconds_max": figure_over_seeds(runs, "seconds", max),
    }
    return {**worst, "missed": missed_goals(worst, GOALS)}
