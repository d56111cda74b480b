"""The profile benchmark compares what a table predicts with what was measured, and with nothing else."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks.profile import app, compare, drift, summary
from earl.parallelism import Parallelism
from services.scheduler.profile.rows import ProfileRow


def row(length: float, count: float, rate: float | None, stage: str = "rollout") -> ProfileRow:
    return ProfileRow(stage, Parallelism(), length, count, rate, None, rate is None)


def test_errors_are_relative_to_what_was_measured():
    table = [row(100, 1, 10.0), row(100, 4, 40.0), row(400, 1, 10.0), row(400, 4, 40.0)]
    held = [row(200, 2, 16.0), row(200, 1, 10.0), row(200, 4, None), row(200, 2, 5.0, "trainer")]
    compared = compare(table, held)
    assert [(one.predicted, one.measured) for one in compared] == [
        (pytest.approx(20.0), 16.0),
        (pytest.approx(10.0), 10.0),
    ]
    assert summary(compared) == {"profile_error": 0.25, "profile_error_median": 0.125}
    assert summary([]) == {"profile_error": None, "profile_error_median": None}


def test_a_machine_that_changed_is_told_by_points_measured_twice():
    table = [row(100, 1, 10.0), row(100, 4, 40.0), row(400, 4, None)]
    assert drift(table, [row(100, 1, 5.0), row(100, 4, 40.0), row(400, 4, 3.0), row(7, 7, 1.0)]) == 0.75
    assert drift(table, []) is None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_runs_from_model_to_figures(tmp_path):
    arguments = [
        *("--layers", "1", "--vocabulary", "64", "--threads", "1", "--step", "64,2"),
        *("--contexts", "32,128", "--concurrency", "1,4", "--held-contexts", "64", "--held-concurrency", "2"),
        *("--stages", "rollout,trainer", "--minutes", "2", "--held-minutes", "2"),
        *("--results", str(tmp_path), "--json"),
    ]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 0 and figures["not_measured"] == []
    assert {one["stage"] for one in figures["held_out"]} == {"rollout", "trainer"}
    assert figures["profile_error"] >= figures["profile_error_median"] >= 0 and figures["step_error"] >= 0
    assert figures["machine_drift"] > 0
    assert len(figures["table"]) == 8
