"""The figures of the replay benchmark."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.replay import ARMS, PASSES, REPLAY, WITHOUT, overrides_for, summary, until_goal
from earl.cli.run.demo import demo_config


def line(step: int, win_rate: float, **more: Any) -> dict[str, Any]:
    return {
        "phase": "train",
        "step": step,
        "win_rate": win_rate,
        "tokens": 100.0,
        "time_s": float(step),
        **more,
    }


def test_tokens_count_until_the_mean_of_the_last_steps_reaches_the_goal() -> None:
    lines = [{"phase": "warmup", "step": 1, "tokens": 1e6}]
    lines += [line(step, 0.5 if step <= 4 else 1.0, replayed_sequences=8.0) for step in range(1, 21)]
    figures = until_goal(lines)
    # Of steps 4 to 11 one has 0.5: their mean is the first that is 0.9 or more.
    assert (figures["tokens"], figures["steps_to_goal"], figures["seconds_to_goal"]) == (1100, 11, 10.0)
    assert (figures["best_win_rate"], figures["steps"], figures["replayed"]) == (1.0, 20, 160)
    # A step that was rolled back counts as it was done last.
    assert until_goal([*lines, line(11, 0.0)])["steps_to_goal"] == 19
    short = until_goal(lines[:9])
    assert short["tokens"] is None and short["steps_to_goal"] is None and short["best_win_rate"] == 0.75


def test_ratios_are_paired_by_seed_and_a_goal_needs_every_seed() -> None:
    def runs(replay: list[int | None]) -> list[dict[str, Any]]:
        tokens = {WITHOUT: [100, 200, 400], REPLAY: replay, PASSES: [50, 100, 200]}
        return [{"arm": arm, "seed": seed, "tokens": tokens[arm][seed]} for seed in range(3) for arm in ARMS]

    made = summary(runs([50, 100, 200]))
    assert (made["tokens_ratio"], made["tokens_ratio_low"], made["tokens_ratio_high"]) == (0.5, 0.5, 0.5)
    assert (made["rival_ratio"], made["passes_ratio"], made["missed"]) == (1.0, 0.5, [])
    spread = summary(runs([25, 200, 200]))
    assert spread["tokens_ratio"] == pytest.approx(0.5) and spread["missed"] == []
    assert spread["tokens_ratio_low"] < 0.3 and spread["tokens_ratio_high"] > 0.7
    some = summary(runs([50, None, 200]))
    assert (some["tokens_ratio"], some["tokens_ratio_seeds"]) == (0.5, 2)
    assert some["unreached"] == {WITHOUT: 0, REPLAY: 1, PASSES: 0} and some["missed"] == ["tokens_ratio"]
    none = summary(runs([None, None, None]))
    assert none["tokens_ratio"] is None and none["missed"] == ["tokens_ratio"]


def test_an_optimizer_step_has_as_many_sequences_in_each_arm() -> None:
    demo = demo_config(0)
    configs = {arm: demo_config(0, overrides_for(arm, 40, 2, 2, demo.trainer)) for arm in ARMS}
    sizes = {
        arm: (config.scheduler.batch_groups + config.replay.batch_part(config.scheduler.batch_groups))
        / config.trainer.minibatches
        for arm, config in configs.items()
    }
    assert len(set(sizes.values())) == 1
    limit = demo.trainer.kl_limit
    assert [config.trainer.kl_limit for config in configs.values()] == pytest.approx(
        [limit, 3 * limit, limit]
    )
    assert [config.trainer.passes for config in configs.values()] == [1, 1, 2]
    assert {config.scheduler.train_limit_s for config in configs.values()} == {0.0}
