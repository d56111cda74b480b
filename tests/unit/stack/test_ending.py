"""Checks why a run ended: one sentence for each way."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from earl.errors import ConfigError
from earl.stack import ending
from earl.stack.ending import ending_reason, refuse_complete
from earl.stack.record import LaunchRecord
from earl.stack.status import RunStatus
from tests.support.runs import tictactoe

TRAINING = RunStatus(phase="train", step=3, steps=40)
LOST = "lost: its launcher was killed or the machine was restarted, and nothing was recorded"


@pytest.mark.parametrize(
    ("outcome", "status", "failure", "sentence"),
    [
        ("complete", RunStatus(), {}, "complete"),
        ("stopped", RunStatus(), {}, "stopped"),
        (
            "stopped",
            RunStatus(phase="warmup", message="stopped by Ctrl-C"),
            {},
            "stopped by Ctrl-C in phase warmup",
        ),
        (
            "failed",
            TRAINING,
            {"error": "EngineLost", "message": "engine 0 is gone"},
            "failed after 3 of 40 steps: EngineLost: engine 0 is gone",
        ),
        ("failed", RunStatus(), {}, "failed"),
        ("", TRAINING, {}, LOST),
        ("lost", TRAINING, {}, LOST),
    ],
)
def test_each_way_has_its_sentence(outcome: str, status: RunStatus, failure: dict[str, str], sentence: str):
    assert ending_reason(outcome, status, failure) == sentence


def test_the_examples_of_the_docstring_come_out():
    assert doctest.testmod(ending) == (0, 2)


@pytest.mark.parametrize(
    ("keys", "status", "remedy"),
    [
        ({"steps": 2}, RunStatus(step=2, steps=2, message="all 2 steps are trained"), "--scheduler.steps 4"),
        ({"steps": 3}, RunStatus(step=2, steps=2, message="all 2 steps are trained"), ""),
        (
            {"steps": 9, "train_limit_s": 60.0},
            RunStatus(
                step=2, steps=9, message="the time limit of 60 s (scheduler.train_limit_s) was reached"
            ),
            "--scheduler.train_limit_s 120",
        ),
        (
            {"steps": 9, "train_limit_s": 0.0},
            RunStatus(step=2, steps=9, message="the time limit of 60 s"),
            "",
        ),
    ],
)
def test_a_complete_run_says_which_key_continues_it(
    tmp_path: Path, keys: dict[str, float], status: RunStatus, remedy: str
):
    config = tictactoe(tmp_path, scheduler=keys)
    record = LaunchRecord(1, "mark", outcome="complete", status=status)
    if not remedy:
        refuse_complete(config, record, "test")
        return
    with pytest.raises(ConfigError, match=f"test is complete: .*earl resume test {remedy}$"):
        refuse_complete(config, record, "test")


def test_an_evaluation_that_has_ended_has_nothing_to_continue(tmp_path: Path):
    config = tictactoe(tmp_path, scheduler={"steps": 0}, warmup={"batches": 0})
    record = LaunchRecord(1, "mark", outcome="complete", status=RunStatus(message="evaluated"))
    with pytest.raises(ConfigError, match="test is an evaluation, with nothing to continue; evaluate again"):
        refuse_complete(config, record, "test")


def test_a_run_that_only_imitated_is_told_how_many_steps_to_train(tmp_path: Path):
    config = tictactoe(tmp_path, scheduler={"steps": 0}, warmup={"batches": 2})
    record = LaunchRecord(1, "mark", outcome="complete", status=RunStatus(message="nothing to train"))
    with pytest.raises(ConfigError, match=r"--scheduler\.steps 100$"):
        refuse_complete(config, record, "test")


def test_a_run_that_is_not_complete_may_be_resumed(tmp_path: Path):
    refuse_complete(tictactoe(tmp_path), None, "test")
    refuse_complete(tictactoe(tmp_path), LaunchRecord(1, "mark", outcome="stopped"), "test")
