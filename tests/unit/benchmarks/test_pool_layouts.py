"""`earl bench pool --layouts`: its ways, which of them run, what is compared and which goals are missed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.growing_context import EXAMPLE
from benchmarks.pool_layouts import (
    APART,
    JOINT,
    NOISE,
    RUN_FILE,
    STATICS,
    MeasuredStep,
    compare_layouts,
    layouts_summary,
    noisy_profile,
    predicted_s,
    quickest_layouts,
    static_keys,
    static_layouts,
    step_works,
    wide_moves,
)
from earl.cli.report.data import RecordedRun
from earl.config.load import load_run
from earl.errors import ConfigError
from earl.parallelism import Parallelism
from services.scheduler.profile.rows import parse
from tests.support.paths import ROOT

EVEN = (Parallelism(4), Parallelism(2, cp=2))
NARROW = (Parallelism(4), Parallelism(4))


def run(way: str, train_s: float, repetition: int = 0, **others: Any) -> dict[str, Any]:
    figures = {
        "way": way, "repetition": repetition, "train_s": train_s, "whole": True, "over_pace": 0.01, "lost": 0,
        "unaccounted": 0.0, "wide_moves": 2, "moves": [], "works": [],
    }  # fmt: skip
    return figures | others


def test_every_static_way_is_a_run_file(tmp_path: Path):
    config = load_run(RUN_FILE, [])
    assert config.pace is not None
    statics = static_layouts(config, config.pace)
    assert len(statics) == len(set(statics)) == 16 and EVEN in statics
    for layouts in statics:
        chosen = load_run(RUN_FILE, static_keys(config, layouts))
        assert chosen.rollout.engines * chosen.rollout.tp + chosen.trainer.ranks == 8
        assert chosen.rollout.max_sequences == config.rollout.max_sequences * layouts[0].tp
    profile = tmp_path / "profile.csv"
    profile.write_text(noisy_profile(config))
    assert load_run(RUN_FILE, [("scheduler.profile", str(profile))]).selects_layouts
    with pytest.raises(ConfigError):
        compare_layouts([("stack.pool_devices", "0"), ("paced.table", "")], 2, Path(), as_json=False)
    assert load_run(EXAMPLE, []).pace is None


def test_the_profile_is_near_the_table_and_not_the_table():
    config = load_run(RUN_FILE, [])
    table = ROOT / "earl" / "pacing" / "tables" / f"{config.paced.table}.csv"
    exact, noisy = parse(table.read_text(), "table"), parse(noisy_profile(config), "profile")
    off = [
        row.tokens_per_device_s / known.tokens_per_device_s
        for row, known in zip(noisy, exact, strict=True)
        if row.tokens_per_device_s is not None and known.tokens_per_device_s is not None
    ]
    assert all(1 - NOISE <= ratio <= 1 + NOISE for ratio in off) and len(set(off)) > len(off) // 2
    assert noisy_profile(config) == noisy_profile(config)


def test_the_ways_that_are_predicted_to_be_quickest_run():
    config = load_run(RUN_FILE, [])
    assert config.pace is not None
    work = MeasuredStep(508.0, (2.0, 40.0), NARROW)
    assert predicted_s([work], NARROW, config.pace) == pytest.approx(10.0)
    # At 508 tokens a device of a replica of two does 2.77 times as much.
    assert predicted_s([work], EVEN, config.pace) == pytest.approx(10.0 / 2.77, rel=0.05)
    quickest = quickest_layouts([work], static_layouts(config, config.pace), config.pace)
    assert len(quickest) == STATICS and all(trainer.cp == 2 for _, trainer in quickest)


def test_a_joint_run_is_compared_with_both_rivals():
    best = "dp4 / dp2·cp2"
    runs = [
        *(run(JOINT, seconds, number) for number, seconds in enumerate((50.0, 51.0))),
        *(run(APART, seconds, number) for number, seconds in enumerate((75.0, 76.0))),
        *(run(best, seconds, number) for number, seconds in enumerate((65.0, 66.0))),
        run("dp5 / dp3", 80.0),
    ]
    figures = layouts_summary(runs)
    assert figures["vs_apart"] == pytest.approx(1.495, abs=0.01)
    assert figures["best_static"] == best and figures["vs_best_static"] == pytest.approx(1.297, abs=0.01)
    assert figures["missed"] == []
    missed = layouts_summary([run(JOINT, 50.0, wide_moves=0), run(APART, 51.0, over_pace=0.2)])["missed"]
    assert missed == ["vs_apart", "vs_best_static", "wide_moves_min", "over_pace_max"]


def test_a_run_is_read_from_what_it_recorded(tmp_path: Path):
    here = {"rollout": 4, "trainer": 4}
    candidates = [
        {"rollout": 3, "trainer": 5, "layouts": {"rollout": "dp3", "trainer": "dp5"}},
        here | {"layouts": {"rollout": "dp4", "trainer": "dp2·cp2"}},
    ]
    line = {"step": 3, "sentence": "", "here": here, "candidates": candidates} | {
        "rollout_device_s": 1.5, "trainer_device_s": 2.5,
    }  # fmt: skip
    (tmp_path / "splits.jsonl").write_text(json.dumps(line) + "\n")
    metrics = [{"phase": "train", "step": 2, "length_mean": 96.0}]
    config = load_run(RUN_FILE, [])
    works = step_works(RecordedRun(tmp_path, config, metrics, [], {}, {}))
    assert works == [MeasuredStep(96.0, (1.5, 2.5), EVEN)]
    assert (
        wide_moves([{"layouts": {"rollout": "dp4", "trainer": "cp2"}}, {"layouts": {"rollout": "dp3"}}, {}])
        == 1
    )
