"""A resumed run keeps the bounds that it began with, and one begun before there was a run without says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from earl.config.run import RunConfig
from earl.stack.begun_bounds import with_begun_bounds
from earl.stack.rundir import check_same_policy
from tests.support.runs import tictactoe


def of_before(tmp_path: Path, **rollout: Any) -> Path:
    """The run.json of an earlier EARL: the former defaults stand in it as numbers."""
    config = tictactoe(tmp_path).model_dump(mode="json")
    del config["rollout"]["held_context_tokens"]
    config["rollout"] |= {"max_context_tokens": 256, **rollout}
    config["model"]["scratch"]["max_positions"] = 256
    config["trainer"]["microbatch_tokens"] = 16_384
    run_json = tmp_path / "run.json"
    run_json.write_text(json.dumps(config))
    return run_json


def left_open(tmp_path: Path, **rollout: Any) -> RunConfig:
    scratch = {"scratch": {"max_positions": 0}}
    return tictactoe(tmp_path, rollout={"max_context_tokens": 0, **rollout}, model=scratch)


def bounds(config: RunConfig) -> tuple[int, int, int]:
    return (
        config.rollout.max_context_tokens,
        config.model.scratch.max_positions,
        config.trainer.microbatch_tokens,
    )


def test_a_run_begun_before_keeps_256_and_says_so(tmp_path: Path):
    run_json = of_before(tmp_path)
    config, notes = with_begun_bounds(left_open(tmp_path), run_json)
    assert bounds(config) == (256, 256, 16_384)
    assert config.context_tokens == 256 and config.loss_tokens == 256
    assert notes == [
        "contexts end at 256 tokens, as when the run began: rollout.max_context_tokens changes that"
    ]
    # Its own run.toml has the number; it is said all the same.
    again, notes_again = with_begun_bounds(config, run_json)
    assert (again, notes_again) == (config, notes)
    # Resumed once, it is a run of today: a file that leaves the bound open still means what it began with.
    run_json.write_text(config.model_dump_json())
    assert with_begun_bounds(left_open(tmp_path), run_json) == (config, notes)
    assert with_begun_bounds(config, run_json) == (config, [])


def test_a_run_of_a_checkpoint_is_the_same_policy_when_it_is_resumed(tmp_path: Path):
    run_json = of_before(tmp_path)
    before = json.loads(run_json.read_bytes())
    before["model"]["path"] = "Qwen3-8B"
    run_json.write_text(json.dumps(before))
    opened = left_open(tmp_path)
    opened = opened.model_copy(update={"model": opened.model.model_copy(update={"path": "Qwen3-8B"})})
    config, _ = with_begun_bounds(opened, run_json)
    check_same_policy(config, RunConfig.model_validate(before))


def test_a_bound_that_is_given_or_a_new_run_is_left_alone(tmp_path: Path):
    run_json = of_before(tmp_path)
    given, notes = with_begun_bounds(left_open(tmp_path, max_context_tokens=512), run_json)
    assert given.rollout.max_context_tokens == 512 and notes == []
    for none in (None, tmp_path / "nothing.json"):
        assert with_begun_bounds(left_open(tmp_path), none) == (left_open(tmp_path), [])


@pytest.mark.parametrize("held", [300, 90_000])
def test_a_run_begun_without_a_bound_is_resumed_without_one(tmp_path: Path, held: int):
    run_json = tmp_path / "run.json"
    run_json.write_text(left_open(tmp_path, held_context_tokens=held).model_dump_json())
    config, notes = with_begun_bounds(left_open(tmp_path), run_json)
    assert bounds(config) == (0, 0, 0) and notes == []
