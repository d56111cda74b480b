"""`earl bench algorithms`: the time of the win rate, figures over seeds, goals, and runs that were none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.algorithms.bounded_run import BoundedRun
from benchmarks.algorithms.command import (
    LIMIT_S,
    NO_RUN,
    WINDOW_STEPS,
    ended_figures,
    names_of,
    one_seed,
    reached_s,
    stem,
    summary,
    teacher_of,
)
from benchmarks.algorithms.table import ALGORITHMS, TEACHER, KnownAlgorithm
from earl.cli.report.data import RecordedRun
from earl.cli.run.demo import RUN_FILE, example
from earl.config.load import load_run
from earl.errors import ProcessFailed

GRPO, EACH = ALGORITHMS["grpo"], KnownAlgorithm("", {}, least=0.9, in_each=True)


def recorded(rates: list[float]) -> RecordedRun:
    lines = [
        {"phase": "train", "step": step, "time_s": 10.0 * step, "win_rate": rate}
        for step, rate in enumerate(rates, 1)
    ]
    return RecordedRun(Path("/runs/one"), load_run(example(RUN_FILE)), lines, [], {}, {})


def test_the_win_rate_is_reached_by_a_mean_of_a_whole_window():
    assert reached_s(recorded([1.0] * (WINDOW_STEPS - 1))) is None
    assert reached_s(recorded([1.0] * WINDOW_STEPS)) == 10.0 * WINDOW_STEPS
    assert reached_s(recorded([0.82] * WINDOW_STEPS + [1.0] * WINDOW_STEPS)) == 10.0 * (WINDOW_STEPS + 4)
    assert reached_s(recorded([0.89] * 50)) is None


def run(rate: float | None, seconds: float | None = 100.0, **others: Any) -> dict[str, Any]:
    return {**NO_RUN, "win_rate": rate, "seconds": seconds, "reached_s": 50.0, "failure": ""} | others


def test_two_of_three_seeds_meet_the_goal_and_a_failed_one_counts_as_nothing():
    runs = [run(0.97), run(0.85), run(0.2, reached_s=None)]
    figures = summary(GRPO, runs)
    assert figures["missed"] == [] and figures["seeds_reached"] == 2
    assert (figures["win_rate_min"], figures["win_rate_median"]) == (0.2, 0.85)
    assert (figures["reached_s_median"], figures["seeds_at_90"]) == (None, 2)
    assert summary(EACH, runs)["missed"] == ["seeds_reached"]
    assert summary(EACH, [run(0.9), run(0.95), run(0.91)])["missed"] == []
    failed = summary(GRPO, [run(0.9), run(None, None, reached_s=None, failure="ended with 1: x"), run(0.8)])
    assert failed["missed"] == ["seeds_reached"] and failed["failures"] == ["ended with 1: x"]
    assert failed["win_rate_min"] == 0.0
    assert summary(GRPO, [run(0.9, 301.0)] * 3)["missed"] == ["seconds_max"]
    assert summary(GRPO, [run(None, None, reached_s=None)])["missed"] == ["seeds_reached", "seconds_max"]


def test_a_run_that_left_nothing_has_its_failure(tmp_path: Path):
    figures = ended_figures(BoundedRun(tmp_path / "none", LIMIT_S, "ran longer than 600 s: no line"))
    assert figures == {
        **NO_RUN,
        "directory": "none",
        "seconds": LIMIT_S,
        "failure": "ran longer than 600 s: no line",
    }


def test_a_run_file_that_cannot_be_is_a_failure_of_its_algorithm_alone(tmp_path: Path):
    starts = {0: {"model": str(tmp_path), "start_win_rate": 0.5}}
    broken = KnownAlgorithm("", {"trainer.loss": "no such"})
    figures = one_seed("broken", broken, [("runs_dir", str(tmp_path))], 0, starts)
    assert figures["failure"] and figures["win_rate"] is None and figures["start_win_rate"] == 0.5
    taught = KnownAlgorithm("", {"model.path": TEACHER})
    assert "--only grpo" in one_seed("taught", taught, [("runs_dir", str(tmp_path))], 0, starts)["failure"]


def test_the_newest_model_of_grpo_teaches(tmp_path: Path):
    config = load_run(example(RUN_FILE), [("runs_dir", str(tmp_path)), ("seed", "2")])
    with pytest.raises(ProcessFailed, match="no run of grpo with seed 2"):
        teacher_of(config)
    model = tmp_path / f"{stem('grpo')}-seed2-2" / "model-final"
    model.mkdir(parents=True)
    (tmp_path / f"{stem('grpo')}-seed1" / "model-final").mkdir(parents=True)
    assert teacher_of(config) == str(model.resolve())


def test_names_are_told_where_one_is_wrong():
    assert names_of("rloo,gspo") == ["rloo", "gspo"] and names_of("") == list(ALGORITHMS)
    with pytest.raises(typer.BadParameter, match=r"'ppo2' is none of grpo, dr-grpo"):
        names_of("ppo2")
