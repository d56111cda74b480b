"""Checks what sinks are given: every number once, under names that group, and nothing confidential."""

import json

import pytest

from earl.config.load import load_run
from earl.errors import ConfigError
from earl.obs.sinks import Following, open_sink, pour
from earl.stack.plan import plan
from tests.support.recorded import TICTACTOE, recorded


class Kept:
    def __init__(self):
        self.points, self.flushed = [], 0

    def add(self, point):
        self.points.append(point)

    def flush(self):
        self.flushed += 1

    def close(self):
        pass


def test_every_number_is_given_once(tmp_path):
    recorded(tmp_path, steps=3)
    sink = Kept()
    assert pour(Following(tmp_path, "kept"), sink) == 3 + 2 and sink.flushed == 1
    steps = [point for point in sink.points if "train/loss" in point.values]
    assert [point.version for point in steps] == [4, 5, 6]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps[0].values["train/reward_mean"] == pytest.approx(lines[0]["reward_mean"])
    assert steps[0].values["train/episode_tokens/p95"] == pytest.approx(lines[0]["episode_tokens"]["p95"])
    assert steps[1].time_s - steps[0].time_s == pytest.approx(10.0)
    evaluations = [point for point in sink.points if "evaluation/win_rate" in point.values]
    assert [point.version for point in evaluations] == [3, 6]
    for point in sink.points:
        assert not [
            name for name in point.values if "histogram" in name or name.endswith(("rewards", "wins"))
        ]
        assert all(isinstance(value, float) for value in point.values.values())
    # It goes on where it was, in this process or the next.
    assert pour(Following(tmp_path, "kept"), sink) == 0
    assert pour(Following(tmp_path, "another"), sink) == 5


def test_another_file_under_the_same_name_is_given_from_its_beginning(tmp_path):
    recorded(tmp_path, steps=2)
    assert pour(Following(tmp_path, "kept"), Kept()) == 2 + 2
    path = tmp_path / "metrics.jsonl"
    text = path.read_text()
    with path.open("w") as again:  # the same inode, and no shorter than what was read of it
        again.write(text.replace('"step"', '"stage": 1, "step"'))
    assert pour(Following(tmp_path, "kept"), Kept()) == 2


def test_a_sink_that_fails_is_given_the_same_again(tmp_path):
    class Failing(Kept):
        def flush(self):
            raise OSError("disk full")

    recorded(tmp_path, steps=2)
    with pytest.raises(OSError, match="disk full"):
        pour(Following(tmp_path, "kept"), Failing())
    assert pour(Following(tmp_path, "kept"), Kept()) == 4


def test_names_that_are_none(tmp_path):
    with pytest.raises(ConfigError, match="no sink 'tensorbored'"):
        open_sink("tensorbored", tmp_path, {}, Following(tmp_path, "tensorbored"))


def test_sinks_are_processes_that_the_run_can_spare(tmp_path):
    config = load_run(TICTACTOE, [("obs.sinks", '["tensorboard", "wandb"]')])
    specs = {spec.name: spec for spec in plan(config, tmp_path / "run.json")}
    for name in ("sink-tensorboard", "sink-wandb"):
        assert specs[name].expendable and specs[name].role == "" and not specs[name].needs
        assert specs[name].stop_rank > specs["scheduler"].stop_rank
    others = {name for name, spec in specs.items() if spec.expendable and not name.startswith("sink-")}
    assert others == {"dashboard"}
