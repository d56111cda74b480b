"""Deadlines that a run file leaves open grow with what has to be read or played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earl.config.deadlines import checkpoint_bytes, load_seconds, start_seconds
from earl.config.run import RunConfig
from services.scheduler.state.rules import rules_of


def config_of(**sections: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate({"name": "a", "environment": {"name": "e"}, **sections})


def test_an_8b_model_has_the_time_that_it_needs():
    size = int(16.4e9)  # in bfloat16
    assert start_seconds(config_of(), size) == pytest.approx(60 + 328)
    assert load_seconds(config_of(), size) == pytest.approx(30 + 164)
    assert start_seconds(config_of(stack={"start_s": 20}), size) == 20
    assert load_seconds(config_of(data_plane={"read_s": 5}), 0) == 5


def test_a_context_of_32k_tokens_has_half_an_hour():
    long = config_of(rollout={"max_context_tokens": 32_768, "max_new_tokens": 8192})
    assert long.episode_s == pytest.approx(300 + 1638.4) and rules_of(long).episode_s == long.episode_s
    assert config_of(scheduler={"episode_s": 5}).episode_s == 5
    assert config_of().episode_s == pytest.approx(300, rel=0.1)


def test_the_size_of_a_checkpoint_is_that_of_its_weights(tmp_path: Path):
    (tmp_path / "model-1.safetensors").write_bytes(b"12345")
    (tmp_path / "model-2.safetensors").write_bytes(b"123")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    assert checkpoint_bytes(config_of(model={"path": str(tmp_path)})) == 8
    assert checkpoint_bytes(config_of(model={"path": str(tmp_path / "none")})) == 0
    assert checkpoint_bytes(config_of()) == 0
