"""`earl bench growing-context --paced`: every layout once, survivors in pairs, and which goals are missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.growing_context import EXAMPLE, PACED_EXAMPLE, static_ways
from benchmarks.paced_growth import bare_summary, compare, repeated, summary
from earl.cli.report.data import RecordedRun
from earl.config.load import load_run
from earl.errors import ConfigError

RUN: dict[str, Any] = {
    "tokens_per_s": 100.0, "episodes_truncated": 0, "episodes_out_of_memory": 0, "switches": 0,
    "survives": True, "over_pace": 0.01, "late_passes": 0.02, "repetition": 0,
}  # fmt: skip


def record(step_s: float, rewards: list[float]) -> RecordedRun:
    """Steps of so many seconds each, of these mean rewards."""
    metrics = [
        {"phase": "train", "step": step, "time_s": step_s * step, "reward_mean": reward}
        for step, reward in enumerate(rewards, 1)
    ]
    return RecordedRun(Path(), load_run(PACED_EXAMPLE, []), metrics, [], {}, {})


def test_the_example_has_eight_paced_devices_and_every_legal_layout_is_a_way():
    config = load_run(PACED_EXAMPLE, [])
    assert config.rollout.engines * config.rollout.tp + config.trainer.ranks == 8
    ways = dict(static_ways(config, all_layouts=True))
    assert len(ways) == 3 * 3 - 1
    assert {way.partition(" / ")[0] for way in ways} == {"dp4", "dp2·tp2", "tp4"}
    assert {way.partition(" / ")[2] for way in ways} == {"dp4", "dp2·cp2", "cp4"}
    # Each of them is a run file that EARL takes, and its memory is the table's alone.
    for keys in ways.values():
        assert load_run(PACED_EXAMPLE, list(keys)).rollout.kv_tokens == 0
    # Some hold the longest sequence, others do not.
    assert {way.partition(" / ")[0] for way in dict(static_ways(config, all_layouts=False))} == {"tp4"}


def test_real_devices_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"has no \[paced\] table"):
        compare(
            EXAMPLE, load_run(EXAMPLE, []), [], {}, "selector", lambda *_: record(1.0, [1.0]),
            lambda _: {}, bool, 1, tmp_path, as_json=False,
        )  # fmt: skip


def test_the_quickest_survivors_are_repeated():
    runs = [RUN | {"way": "selector", "tokens_per_s": 999.0}]
    runs += [RUN | {"way": str(rate), "tokens_per_s": float(rate)} for rate in (10, 60, 30, 20, 50, 40)]
    runs.append(RUN | {"way": "dead", "tokens_per_s": 500.0, "survives": False})
    assert repeated(runs, "selector") == ["60", "50", "40"]


def test_pairs_of_one_seed_are_compared_with_their_intervals():
    runs, records = [], []
    for repetition, noise in enumerate((1.0, 2.0, 0.5)):
        # A slow round is slow for both: their ratio is not.
        for way, rate, step_s in (("selector", 120.0, 1.0), ("fast", 100.0, 2.0), ("slow", 50.0, 1.5)):
            jitter = 1.01 if (way, repetition) == ("fast", 1) else 1.0
            runs.append(RUN | {"way": way, "repetition": repetition, "tokens_per_s": rate * noise * jitter})
            records.append(record(step_s / noise, [0.1, 0.2, 0.4]))
    runs.append(RUN | {"way": "dead", "survives": False})
    records.append(record(1.0, []))
    figures = summary(runs, records, "selector")
    assert figures["best_static"] == "fast"
    assert figures["vs_best_static"] == pytest.approx(1.2, rel=0.01)
    assert 1.15 < figures["vs_best_static_low"] < figures["vs_best_static"] < figures["vs_best_static_high"]
    # The rival that is hardest to beat in seconds is another than in tokens/s.
    assert figures["reward_seconds_static"] == "slow"
    assert figures["reward_seconds"] == pytest.approx(1.5)
    assert figures["survivors"] == ["fast", "slow"] and figures["ended_for_memory"] == ["dead"]
    assert figures["missed"] == ["survivors_min"]


def test_seconds_count_to_the_reward_that_both_earn():
    runs = [RUN | {"way": "selector"}, RUN | {"way": "static", "late_passes": 0.3}]
    # The static run earns 0.75 in four steps, and the selector's more in three: tasks may become harder.
    records = [record(1.0, [0.5, 0.25, 0.125]), record(1.0, [0.25, 0.25, 0.125, 0.125])]
    figures = summary(runs, records, "selector")
    assert figures["reward_seconds"] == pytest.approx(4 / 2)
    assert figures["late_passes_max"] == 0.3
    assert figures["reward_seconds_low"] is None and "reward_seconds_low" in figures["missed"]


def test_a_selector_that_lost_episodes_has_no_ratio():
    runs = [RUN | {"way": "selector", "survives": False, "episodes_truncated": 2, "over_pace": 0.2}]
    runs.append(RUN | {"way": "static"})
    figures = summary(runs, [record(1.0, [1.0])] * 2, "selector")
    assert figures["vs_best_static"] is None and figures["truncated_max"] == 2.0
    assert {"vs_best_static_low", "truncated_max", "over_pace_max"} <= set(figures["missed"])


def test_the_bare_cores_are_reported_beside():
    bare = [{"way": "selector", "tokens_per_s": 90.0}, {"way": "a", "tokens_per_s": 100.0}]
    bare.append({"way": "b", "tokens_per_s": None})
    assert bare_summary(bare, "selector") == {
        "tokens_per_s": {"selector": 90.0, "a": 100.0}, "best_static": "a", "vs_best_static": 0.9,
    }  # fmt: skip
    assert bare_summary([], "selector")["vs_best_static"] is None
