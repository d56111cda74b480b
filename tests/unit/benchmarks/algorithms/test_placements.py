"""`earl bench placements`: run files that differ in the placement alone, and when digests count as equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.algorithms.placements import PLACED, PLACEMENTS, goals, one_run, placed_config, row, summary
from benchmarks.algorithms.table import ALGORITHMS
from earl.models.create import create_model


def test_run_files_differ_in_what_the_placement_decides_alone(tmp_path: Path):
    configs = {way: placed_config(keys) for way, keys in PLACEMENTS.items()}
    decided = {"stack": {"placement", "share"}, "rollout": {"workers"}}
    assert len({config.model_dump_json(exclude=decided) for config in configs.values()}) == 1
    assert [config.rollout.workers for config in configs.values()] == [1, 1, 1, 4]
    assert [config.stack.share for config in configs.values()] == [False, True, "alternate", False]
    assert all(config.deterministic for config in configs.values())
    demo = configs["separate"]
    teacher = create_model(tmp_path / "teacher", demo.model, demo.seed + 1, demo.context_tokens)
    for name in PLACED:
        assert placed_config([*PLACEMENTS["actors"], *ALGORITHMS[name].overrides(str(teacher))])


def run(digests: list[float], **others: Any) -> dict[str, Any]:
    return {"digests": digests, "trained": 2, "step_s": 0.5, "failure": ""} | others


def row_of(*runs: dict[str, Any]) -> dict[str, Any]:
    return row("grpo", dict(zip(PLACEMENTS, runs, strict=False)), steps=2)


def test_digests_are_equal_if_every_step_of_whole_runs_is():
    same = run([1.0, 2.0, 3.0])
    figures = row_of(same, same, same, same)
    assert figures["digest_equal"] == 1.0 and figures["differs_at"] is None and not figures["failures"]
    assert figures["step_s"] == dict.fromkeys(PLACEMENTS, 0.5)
    other = row_of(same, same, run([1.0, 9.0, 3.0]))
    assert other["digest_equal"] == 0.0 and other["differs_at"] == 2
    # Shorter, unfinished, failed, without digests, and of weights that stand still.
    assert row_of(same, run([1.0, 2.0]))["digest_equal"] == 0.0
    assert row_of(same, run([1.0, 2.0, 3.0], trained=1))["digest_equal"] == 0.0
    failed = row_of(same, run([], failure="ended with 1: x", step_s=None))
    assert failed["digest_equal"] == 0.0 and failed["failures"] == ["shared: ended with 1: x"]
    assert row_of(run([]), run([]))["digest_equal"] == 0.0
    assert row_of(run([1.0, 1.0, 1.0]), run([1.0, 1.0, 1.0]))["digest_equal"] == 0.0


def test_goals_are_missed_where_an_algorithm_differs_or_two_are_the_same():
    same, other = run([1.0, 2.0, 3.0]), run([1.0, 2.0, 4.0])
    rows = [row_of(same, same), row_of(other, other)]
    assert summary(rows, goals(2))["missed"] == []
    assert summary([rows[0], rows[0]], goals(2))["missed"] == ["distinct"]
    assert summary([rows[0], row_of(same, other)], goals(2))["missed"] == ["digests_equal", "distinct"]
    # A series that ended early has not shown what it was to.
    assert summary(rows[:1], goals(2))["missed"] == ["digests_equal"]
    assert summary([], goals(2))["missed"] == ["digests_equal"]


def test_a_run_file_that_cannot_be_is_a_failure():
    figures = one_run("r", [("stack.placement", "actors"), ("rollout.workers", "2")])
    assert "rollout.workers = 2" in figures["failure"] and figures["digests"] == []
