"""The bound of contexts: a wish, positions, or what the machine holds; and what is sized by it."""

from __future__ import annotations

from typing import Any

import pytest

from earl.config.check import check_lengths
from earl.config.context_bound import ContextBound
from earl.config.run import RunConfig
from earl.errors import ConfigError
from services.scheduler.state.rules import rules_of
from services.trainer.checkpoint.manifest import config_hash


def run(
    *, positions: int = 0, path: str = "", trainer: dict[str, Any] | None = None, **rollout: Any
) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "t",
            "environment": {"name": "e"},
            "model": {"path": path, "scratch": {"max_positions": positions}},
            "rollout": rollout,
            "trainer": trainer or {},
        }
    )


@pytest.mark.parametrize(
    ("config", "tokens", "source"),
    [
        (run(), 256, "unknown"),
        (run(held_context_tokens=9000), 9000, "rollout.held_context_tokens"),
        (run(max_context_tokens=80), 80, "rollout.max_context_tokens"),
        (run(max_context_tokens=80, held_context_tokens=60), 60, "rollout.held_context_tokens"),
        (run(held_context_tokens=9000, positions=512), 512, "model.scratch.max_positions"),
        (run(held_context_tokens=9000, positions=512, path="m"), 9000, "rollout.held_context_tokens"),
        (run(max_context_tokens=80, positions=80), 80, "rollout.max_context_tokens"),
    ],
)
def test_the_smallest_bound_counts_and_names_its_key(config: RunConfig, tokens: int, source: str):
    assert (config.context_bound.tokens, config.context_bound.source) == (tokens, source)
    assert config.context_tokens == tokens
    assert config.context_bound.wished == (source == "rollout.max_context_tokens")


def test_a_run_without_a_bound_is_made_ready_for_its_answers_and_not_for_the_machine():
    config = run(held_context_tokens=1 << 20, max_new_tokens=16)
    assert (config.context_tokens, config.longest_sequence) == (1 << 20, 1 << 20)
    # 64 turns of 16 tokens, and as many of observations.
    assert config.planned_context == 2048 and config.episode_s == 300 + 2048 / 20
    assert run(held_context_tokens=1000).planned_context == 1000
    assert run(held_context_tokens=1 << 20, max_new_tokens=1).planned_context == 256
    bounded = run(max_context_tokens=32_768)
    assert bounded.planned_context == 32_768 and bounded.episode_s == 300 + 32_768 / 20


@pytest.mark.parametrize("held", [0, 300, 1 << 20])
def test_the_constant_of_the_loss_depends_on_no_machine(held: int):
    """Its default was the bound's, 256: a run file of before that names neither keeps its loss."""
    assert run(held_context_tokens=held).loss_tokens == 256
    assert run(held_context_tokens=held, max_context_tokens=80).loss_tokens == 80
    assert run(held_context_tokens=held, trainer={"loss_sequence_tokens": 7}).loss_tokens == 7


def test_a_micro_batch_that_is_given_still_bounds_a_sequence_and_the_default_does_not():
    static = {"scheduler": {"selector": "static"}}
    given = run(held_context_tokens=1 << 20, trainer={"microbatch_tokens": 4096, "ranks": 2})
    assert given.longest_sequence == 2 * 4096
    fixed = RunConfig.model_validate(given.model_dump() | static)
    assert fixed.longest_sequence == 4096
    open_ = run(held_context_tokens=1 << 20)
    assert open_.longest_sequence == 1 << 20 and open_.trainer.pass_tokens == 16_384


def test_what_a_machine_holds_is_no_setting_of_a_run():
    here, there = run(held_context_tokens=9000), run(held_context_tokens=300)
    bounded = run(max_context_tokens=80)
    settings = [rules_of(config).evaluation_setting for config in (here, there, bounded)]
    assert settings[0] == settings[1] != settings[2]
    assert config_hash(here) == config_hash(there) != config_hash(bounded)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (run(max_context_tokens=7), "rollout.max_context_tokens = 7 is less than 8"),
        (run(positions=3), "model.scratch.max_positions = 3 is less than 8"),
        (run(trainer={"microbatch_tokens": 63}), "trainer.microbatch_tokens = 63 is less than 64"),
        (run(max_context_tokens=128, positions=64), "max_context_tokens = 128 exceeds"),
        (run(max_context_tokens=16), "max_new_tokens = 16 leaves no prompt in max_context_tokens = 16"),
        (run(positions=16), "max_new_tokens = 16 leaves no prompt in max_positions = 16"),
        (run(max_context_tokens=100, trainer={"microbatch_tokens": 64}), "less than one sequence"),
    ],
)
def test_bounds_that_cannot_hold_are_refused(config: RunConfig, message: str):
    with pytest.raises(ConfigError, match=message):
        check_lengths(config)


def test_without_a_bound_no_answer_is_too_long():
    check_lengths(run(max_new_tokens=4096))
    assert run().context_bound == ContextBound(256, "unknown")
