"""Checks the figures of the self-play benchmark, and its random player."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import selfplay
from benchmarks.judged_points import mean, points_of_reward
from benchmarks.selfplay import (
    RUN_FILE,
    by_opponent,
    judged_tasks,
    measured,
    played_in,
    random_points,
    summary,
)
from earl.config.load import load_run
from earl.config.run import RunConfig

CONFIG = load_run(RUN_FILE)


def run(vs_random: float | None, vs_one_ply: float, random_score: float, seconds: float) -> dict[str, Any]:
    return {
        "vs_random": vs_random, "vs_one_ply": vs_one_ply,
        "random_vs_one_ply": random_score, "seconds": seconds,
    }  # fmt: skip


def test_each_opponent_is_met_in_both_seats_and_failed_games_do_not_count() -> None:
    tasks = judged_tasks()
    assert {(task["opponent"], task["player"]) for task in tasks} == {
        (opponent, seat) for opponent in ("random", "one_ply") for seat in (0, 1)
    }
    points = [1.0, 0.5, 0.0, 0.0, 1.0, math.nan, 1.0, 0.0]
    figures = by_opponent("vs", points, tasks)
    assert (figures["vs_random"], figures["vs_random_games"]) == (pytest.approx(2.5 / 3), 3)
    assert figures["vs_random_by_seat"] == [1.0, 0.5] and figures["vs_one_ply_by_seat"] == [0.5, 0.0]
    assert figures["vs_one_ply_low"] < figures["vs_one_ply"] == 0.25 < figures["vs_one_ply_high"]
    nothing = by_opponent("vs", [math.nan] * 4, tasks)
    assert nothing["vs_random"] is None and nothing["vs_random_low"] is None


def test_a_reward_becomes_points_and_a_failed_game_has_none() -> None:
    assert [points_of_reward(reward) for reward in (1.0, 0.0, -1.0)] == [1.0, 0.5, 0.0]
    assert math.isnan(points_of_reward(None))
    assert mean([1.0, math.nan, 0.0]) == 0.5 and mean([math.nan]) is None


def test_a_random_player_does_as_well_as_another_and_loses_to_one_ply() -> None:
    tasks = judged_tasks()
    points = random_points(CONFIG, 400, tasks)
    assert points == random_points(CONFIG, 400, tasks)
    figures = by_opponent("random_vs", points, tasks)
    assert figures["random_vs_random_low"] < 0.5 < figures["random_vs_random_high"]
    assert figures["random_vs_one_ply_high"] < 0.25


def test_the_worst_seed_decides_and_missed_goals_are_named() -> None:
    met = summary([run(0.97, 0.4, 0.05, 900.0), run(0.95, 0.5, 0.06, 1000.0)])
    assert (met["vs_random"], met["vs_one_ply"], met["random_vs_one_ply"]) == (0.95, 0.4, 0.06)
    assert met["seconds_max"] == 1000.0 and met["missed"] == []
    lost = summary([run(None, 0.3, 0.05, 1300.0)])
    assert lost["missed"] == ["vs_random", "vs_one_ply", "seconds_max"]


def test_scripted_players_move_in_the_games_that_judge_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained: list[RunConfig] = []
    judged: list[RunConfig] = []

    def judge(config: RunConfig, model: Path, name: str, games: int) -> list[float]:
        judged.append(config)
        return [1.0] * games

    monkeypatch.setattr(selfplay, "to_end", lambda config: trained.append(config) or SimpleNamespace())
    monkeypatch.setattr(selfplay, "figures", lambda outcome, seed: {"seed": seed})
    monkeypatch.setattr(selfplay, "judged_points", judge)
    figures = measured(CONFIG.model_copy(update={"runs_dir": str(tmp_path)}), 8)
    assert trained[0].environment == CONFIG.environment and played_in(CONFIG).seats == 2
    assert played_in(judged[0]).evaluation_tasks == judged_tasks()
    assert figures["vs_random"] == figures["vs_one_ply"] == 1.0 and figures["vs_random_games"] == 8
