"""A run of a benchmark in a process of its own: a refusal, and a run past its limit, are outcomes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.algorithms.bounded_run import bounded_run
from earl.cli.run.demo import RUN_FILE, example
from earl.config.load import load_run
from earl.config.run import RunConfig


def config(directory: Path) -> RunConfig:
    return load_run(example(RUN_FILE), [("runs_dir", str(directory)), ("name", "r")])


def test_a_run_that_is_refused_has_the_line_that_says_why(tmp_path: Path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "metrics.jsonl").write_text("")
    ended = bounded_run(config(tmp_path), 60.0)
    assert ended.failure.startswith("ended with 2: earl: error: run directory ")
    assert "exists already" in ended.failure and ended.directory == tmp_path / "r"


def test_a_run_past_its_limit_is_stopped(tmp_path: Path):
    ended = bounded_run(config(tmp_path), 0.0)
    assert ended.failure.startswith("ran longer than 0 s: ") and ended.seconds < 60
