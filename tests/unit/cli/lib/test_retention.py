"""The words for a run's protected environments, and where they are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from earl.cli.lib.figures import closing_lines, status_retention
from earl.cli.lib.retention import JudgedVersion, kept_text, retention_lines
from earl.cli.lib.snapshot import RunSnapshot, RunState
from earl.cli.show.panels import mixture, problems
from earl.stack.status import EvaluationStatus, RunStatus


def figures(label: str, kept: float, *, retained: bool) -> dict[str, float]:
    values = {"kept": kept, "kept_low": kept - 0.02, "kept_high": kept + 0.02, "retained": float(retained)}
    return {f"environments.{label}.{name}": value for name, value in values.items()}


START = JudgedVersion("start", 1, {"environments.old.mean_reward": 0.5})
LOST = JudgedVersion("step-2", 3, figures("old", 0.91, retained=False))
KEPT = JudgedVersion("final", 9, figures("old", 1.01, retained=True))


def test_nothing_is_told_where_nothing_is_protected_or_lost() -> None:
    assert retention_lines([START], 1) == []
    assert retention_lines([START, LOST, KEPT], 9) == []


def test_the_last_version_is_told_where_it_is_refused() -> None:
    last = replace(LOST, evaluation="final", version=11)
    assert retention_lines([START, KEPT, last], 9) == [
        "version 11 is refused: of the first score, old 0.91 [0.89, 0.93] is left"
    ]


def test_it_is_told_where_no_later_version_is_retained() -> None:
    both = JudgedVersion("final", 9, dict(LOST.metrics) | figures("a.b/c", 0.5, retained=False))
    assert retention_lines([START, LOST, both], 1) == [
        "version 9 is refused: of the first score, old 0.91 [0.89, 0.93] and a.b/c 0.50 [0.48, 0.52] is left",
        "no later version kept every protected environment: the best one, which `earl export` takes, is 1, "
        "where the run began",
    ]
    assert retention_lines([START, LOST], 0)[-1].startswith("no version is the best: too few episodes")


def test_a_part_without_bounds_and_one_that_is_not_known() -> None:
    assert kept_text({"kept": 0.5}) == "0.50"
    assert kept_text({"retained": 1.0}) == "nothing known"


STATUS = RunStatus(
    evaluations=(
        EvaluationStatus("start", 1, 8, 8, 0.5, 0.3, dict(START.metrics)),
        EvaluationStatus(
            "final", 9, 8, 8, 0.9, 0.8, dict(LOST.metrics) | {"environments.old.mean_reward": 0.8}
        ),
    ),
    best_version=1,
)


def test_a_run_tells_it_in_its_last_lines_and_its_status() -> None:
    told = status_retention(STATUS)
    assert len(told) == 2 and told[0].startswith("version 9 is refused")
    lines = list(closing_lines(STATUS))
    assert lines[-2:] == told
    assert "  old: score 0.80, kept 0.91 [0.89, 0.93] of its first score" in lines
    snapshot = RunSnapshot(Path("runs/x"), RunState.COMPLETE, STATUS)
    assert [line for line in problems(snapshot) if line in told] == told
    table = mixture(STATUS)
    assert table.columns[-1] == "kept" and table.rows[0][-1] == "91.0%"


def test_an_evaluation_in_progress_refuses_nothing() -> None:
    final = replace(STATUS.evaluations[1], done=4)
    assert status_retention(replace(STATUS, evaluations=(STATUS.evaluations[0], final))) == []
