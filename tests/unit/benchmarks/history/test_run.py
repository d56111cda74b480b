"""`earl bench rollout-history`: both ways of a run file, a run's figures, the ratios and the goals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.history.run import DIGEST_STEPS, RUN_FILE, SETTINGS, WAYS, WITH, WITHOUT, run_figures, summary
from earl.cli.report.data import RecordedRun
from earl.config.load import load_run

STEP = {"phase": "train", "tokens": 500.0, "reward_mean": 0.5}


def recorded(*metrics: dict[str, Any]) -> RecordedRun:
    spans = {"rollout-0": [("generate", 1.0, 9.0), ("generate", 10.0, 14.0), ("env", 14.0, 20.0)]}
    spans["rollout-1"] = [("generate", 30.0, 32.0)]
    return RecordedRun(Path("/runs/one"), load_run(RUN_FILE, []), metrics, [], spans, {})


def test_both_ways_are_run_files_that_differ_in_histories_alone():
    ways = {way: load_run(RUN_FILE, [*SETTINGS, *keys]) for way, keys in WAYS.items()}
    assert ways[WITH].rollout.drafts and ways[WITH].scheduler.length_order == "planned"
    assert not ways[WITHOUT].rollout.drafts and ways[WITHOUT].scheduler.length_order == "drawn"
    same = {"rollout": {"drafts"}, "scheduler": {"length_order"}}
    assert ways[WITH].model_dump(exclude=same) == ways[WITHOUT].model_dump(exclude=same)


def test_seconds_of_a_step_leave_the_warm_up_out():
    run = recorded(
        {"phase": "warmup", "time_s": 10.0, "step": 1},
        STEP | {"time_s": 25.0, "step": 2, "weights_digest": 7.0},
        STEP | {"time_s": 40.0, "step": 3, "drafting_tokens": 90.0, "drafting_steps": 60.0},
    )
    figures = run_figures(run)
    assert (figures["rollout_s"], figures["step_s"], figures["tokens"]) == (3.0, 15.0, 1000.0)
    assert figures["tokens_a_step"] == 1.5 and figures["digests"] == [7.0]


def run(way: str, number: int, rollout_s: float, step_s: float) -> dict[str, Any]:
    return {"way": way, "round": number, "rollout_s": rollout_s, "step_s": step_s}


def test_ratios_are_of_rounds_and_weights_must_be_the_same():
    runs = [
        run(WITHOUT, 0, 6.0, 12.0),
        run(WITH, 0, 4.0, 10.0),
        run(WITH, 1, 2.0, 5.0),
        run(WITHOUT, 1, 3.0, 6.0),
    ]
    digests = [{"way": way, "digests": [1.0] * DIGEST_STEPS, "accepted_tokens": 9.0} for way in WAYS]
    figures = summary(runs, digests)
    assert figures["rollout_speedup"] == pytest.approx(1.5) and figures["step_speedup"] == pytest.approx(1.2)
    assert figures["digest_equal"] == 1.0 and not figures["missed"]
    for each in digests:
        each["accepted_tokens"] = 0.0
    assert summary(runs, digests)["missed"] == ["digest_equal"]
    digests[0] |= {"digests": [1.0, 2.0, 1.0], "accepted_tokens": 9.0}
    assert summary(runs, digests)["missed"] == ["digest_equal"]
    assert summary(runs[:1], [])["missed"] == ["digest_equal"]
