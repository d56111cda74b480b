"""`earl bench pool`: every static division once, the best in pairs, the limit, and which goals are missed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.growing_context import EXAMPLE
from benchmarks.pool import OURS, RUN_FILE, limit, quickest, summary, ways_of
from benchmarks.pool_runs import run_figures
from earl.cli.report.data import RecordedRun
from earl.config.load import load_run
from earl.errors import ConfigError

# The best division of the first step is 1:7, of the second 7:1; the even one takes 1.75 times as long.
WORKS = [[2, 1.0, 7.0], [3, 7.0, 1.0]]


def run(way: str, train_s: float, repetition: int = 0, **others: Any) -> dict[str, Any]:
    figures = {
        "way": way, "repetition": repetition, "train_s": train_s, "whole": True, "over_pace": 0.01, "lost": 0,
        "unaccounted": 0.0, "moves": [], "works": WORKS,
    }  # fmt: skip
    return figures | others


def move(**others: Any) -> dict[str, Any]:
    return {"seconds": 2.0, "stall_s": 0.5, "rolled_back": False} | others


def test_every_division_of_the_example_is_a_way_and_a_run_file():
    config = load_run(RUN_FILE, [])
    ways = ways_of(config)
    assert list(ways)[:4] == [OURS, "4:4", "3:5", "5:3"] and len(ways) == 8
    for keys in ways.values():
        chosen = load_run(RUN_FILE, keys)
        assert chosen.rollout.engines + chosen.trainer.ranks == 8
    with pytest.raises(ConfigError, match=r"has no pool of paced devices"):
        ways_of(load_run(EXAMPLE, []))


def test_the_quickest_static_divisions_are_repeated():
    runs = [run(OURS, 90.0), run("4:4", 130.0), run("3:5", 125.0), run("5:3", 140.0)]
    runs.append(run("1:7", 100.0, whole=False))
    assert quickest(runs) == ["3:5", "4:4"]


def test_the_pool_is_compared_with_the_best_of_all_divisions():
    runs = [
        *(run(OURS, seconds, number, moves=[move()]) for number, seconds in enumerate((100.0, 101.0, 99.0))),
        *(run("4:4", seconds, number) for number, seconds in enumerate((130.0, 132.0, 128.0))),
        *(run("3:5", 140.0, number) for number in range(3)),
        # Quicker, but in one round alone, and stopped.
        run("1:7", 110.0, whole=False),
    ]
    figures = summary(runs)
    assert figures["best_static"] == "4:4" and figures["vs_best_static"] == pytest.approx(1.3, abs=0.01)
    assert figures["limit"] == pytest.approx(1.75) and figures["stopped"] == ["1:7"]
    assert figures["share_of_limit"] == pytest.approx(0.4, abs=0.01)
    assert (figures["move_s"], figures["move_stall_s"], figures["moves"]) == (2.0, 0.5, [1, 1, 1])
    assert figures["missed"] == []


def test_each_goal_can_be_missed():
    worse = [
        run(OURS, 100.0, over_pace=0.2, lost=1, unaccounted=2.0, moves=[move(rolled_back=True)]),
        run("4:4", 101.0),
    ]
    assert set(summary(worse)["missed"]) == {
        "vs_best_static", "vs_best_static_low", "over_pace_max", "lost_max", "unaccounted_max",
        "rolled_back_max",
    }  # fmt: skip
    # A pool that did not train every step is compared with nothing.
    ended = summary([run(OURS, 1.0, whole=False, unaccounted=None), run("4:4", 101.0)])
    assert ended["vs_best_static"] is None and "unaccounted_max" in ended["missed"]


def test_the_limit_is_of_the_best_division_in_each_step():
    assert limit([{"works": WORKS}], "4:4") == pytest.approx(1.75)
    assert limit([{"works": WORKS[:1]}], "1:7") == pytest.approx(1.0)
    assert limit([{"works": []}], "4:4") is None


def test_a_run_is_read_from_what_it_recorded(tmp_path: Path):
    metrics = [
        {"phase": "train", "step": step, "time_s": 10.0 + 2.0 * step, "tokens": 100.0, "paced_steps": 50.0,
         "late_steps": 1.0}
        for step in (1, 2, 3)
    ]  # fmt: skip
    pair = {"rollout": 4, "trainer": 4}
    moved = {"step": 2, "before": pair, "after": pair, "holds": pair, "stall_s": 0.1, "seconds": 1.0,
             "rolled_back": False}  # fmt: skip
    (tmp_path / "moves.jsonl").write_text(json.dumps(moved) + "\n")
    split = {"step": 3, "sentence": "", "candidates": [], "rollout_device_s": 1.5, "trainer_device_s": 2.5}
    (tmp_path / "splits.jsonl").write_text(json.dumps(split) + "\n")
    result = {"issued": 10, "trained": 6, "evaluated": 0, "dropped": 1, "live": 2}
    config = load_run(RUN_FILE, [("scheduler.steps", "3"), ("warmup.batches", "0")])
    endings = [{"out_of_memory": 2}, {"ok": 4}]
    figures = run_figures(RecordedRun(tmp_path, config, metrics, [], {}, result, endings=endings))
    assert (figures["steps"], figures["whole"], figures["train_s"], figures["tokens"]) == (
        3,
        True,
        4.0,
        300.0,
    )
    assert (figures["lost"], figures["unaccounted"], figures["over_pace"]) == (3, 1.0, 0.02)
    assert figures["works"] == [[3, 1.5, 2.5]] and figures["moves"][0]["seconds"] == 1.0
