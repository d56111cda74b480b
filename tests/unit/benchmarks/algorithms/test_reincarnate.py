"""The figures of the reincarnation benchmark."""

from __future__ import annotations

from typing import Any

from benchmarks.algorithms.reincarnate import (
    ARMS,
    IMITATION,
    REINCARNATED,
    SCRATCH,
    arm_keys,
    counted_episodes,
    summary,
)
from earl.cli.run.demo import demo_config
from earl.config.check import cross_check


def line(phase: str, step: int, trained: int, **more: Any) -> dict[str, Any]:
    return {
        "phase": phase, "step": step, "win_rate": 0.95, "tokens": 1.0, "time_s": float(step),
        "ledger": {"trained": trained}, **more,
    }  # fmt: skip


def test_played_episodes_of_the_warm_up_and_recorded_ones_count_once() -> None:
    played = [line("warmup", step, 100 * step) for step in (1, 2, 3)]
    train = [
        line("train", step, 300 + 10 * step, teacher_weight=0.5 if step < 3 else 0.0) for step in range(1, 12)
    ]
    alone = counted_episodes([*played, *train])
    assert (alone["episodes"], alone["warmup_episodes"], alone["training_episodes"]) == (380, 300, 80)
    assert (alone["steps_to_goal"], alone["seconds_to_goal"], alone["teacher_steps"]) == (8, 7.0, 2)
    recorded = [each | {"recorded_episodes": 50.0, "recorded_reward_mean": 0.9} for each in played]
    taught = counted_episodes([*recorded, *train])
    assert (taught["episodes"], taught["warmup_episodes"], taught["recorded_reward_mean"]) == (130, 50, 0.9)
    short = counted_episodes([*played, *train[:5]])
    assert short["episodes"] is None and short["warmup_episodes"] == 300
    assert counted_episodes([])["episodes"] is None


def test_a_goal_needs_every_seed() -> None:
    def runs(taught: list[int | None]) -> list[dict[str, Any]]:
        episodes = {SCRATCH: [1000, 2000], REINCARNATED: taught, IMITATION: [300, 400]}
        return [
            {"arm": arm, "seed": seed, "episodes": episodes[arm][seed], "failure": ""}
            for seed in range(2)
            for arm in ARMS
        ]

    met = summary(runs([150, 400]), [0, 1])
    assert met["ratios"] == {REINCARNATED: [0.15, 0.2], IMITATION: [0.3, 0.2]}
    assert (met["ratio_max"], met["missed"], met["imitation_ratio_max"]) == (0.2, [], 0.3)
    assert summary(runs([150, 401]), [0, 1])["missed"] == ["ratio_max"]
    lost = summary(runs([150, None]), [0, 1])
    assert (lost["ratio_max"], lost["missed"], lost["unreached"][REINCARNATED]) == (None, ["ratio_max"], 1)


def test_the_arms_are_run_files() -> None:
    demo_config(0, arm_keys(SCRATCH, "", 64, ""))
    imitating = demo_config(0, arm_keys(IMITATION, "", 64, "episodes.jsonl"))
    cross_check(imitating)
    assert imitating.warmup.episodes and not imitating.teacher.path
