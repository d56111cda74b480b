"""Judges a model by games that no run has trained on: points of 1 for a win, 1/2 for a draw, 0 for a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.learning import to_end
from earl.config.load import Override
from earl.config.run import RunConfig
from earl.obs.metrics import read_lines
from earl.stack.rundir import free_name
from services.trainer.checkpoint.evaluate import evaluation_of

# Added to a run's seed for the games that judge it, which no run has trained on or was chosen by.
JUDGED_SEED = 1 << 20


def judged_points(config: RunConfig, model: Path, name: str, games: int) -> list[float]:
    """Plays so many evaluation games with a model's directory, as a run of this name; ends the command if
    that is stopped.

    Returns the points of each game, of rewards from -1 to 1; NaN where it failed. The games are the same for
    every model of a seed.
    """
    seed: Override = ("seed", str(config.seed + JUDGED_SEED))
    judged = evaluation_of(config, model, games, [seed])
    judged = judged.model_copy(update={"name": free_name(config, name)})
    to_end(judged)
    *_, line = read_lines(Path(judged.runs_dir) / judged.name / "evaluations.jsonl")
    return [points_of_reward(reward) for reward in line["rewards"]]


def points_of_reward(reward: float | None) -> float:
    """Points of a game's reward, -1 to 1; NaN if it failed."""
    return math.nan if reward is None else (reward + 1) / 2


def mean(values: Sequence[float]) -> float | None:
    """The mean of the games that did not fail; None if there are none."""
    done = [value for value in values if not math.isnan(value)]
    return math.fsum(done) / len(done) if done else None
