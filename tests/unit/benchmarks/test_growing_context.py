"""`earl bench growing-context`: which static layouts are run, which runs survive, and what is compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.growing_context import EXAMPLE, OURS, START, static_ways, summary, survives
from earl.cli.report.data import RecordedRun
from earl.config.load import load_run

RUN: dict[str, Any] = {
    "outcome": "complete", "tokens_per_s": 100.0, "episodes_truncated": 0, "episodes_out_of_memory": 0,
    "switches": 0,
}  # fmt: skip


def test_only_the_layout_that_holds_everything_is_run_unless_all_are_asked_for():
    config = load_run(EXAMPLE, [])
    ways = dict(static_ways(config, all_layouts=False))
    assert list(ways) == ["tp4 / cp2"]
    static = load_run(EXAMPLE, ways["tp4 / cp2"])
    assert (static.rollout.engines, static.rollout.tp, static.trainer.cp) == (1, 4, 2)
    # As many sequences and bytes of KV in all, and no sequence is cut short.
    assert (static.rollout.max_sequences, static.rollout.kv_tokens) == (64, 800)
    assert static.longest_sequence == config.longest_sequence == 512
    # Three layouts of either stage; the file's own is no other way.
    assert len(dict(static_ways(config, all_layouts=True))) == 3 * 3 - 1


@pytest.mark.parametrize(
    "change", [{"outcome": "not complete"}, {"episodes_truncated": 1}, {"episodes_out_of_memory": 1}]
)
def test_a_run_that_lost_anything_does_not_survive(change: dict[str, Any]):
    assert survives(RUN)
    assert not survives(RUN | change)


def record(seconds: float, lengths: list[int]) -> RecordedRun:
    """Steps of `seconds` each, 1,000 tokens a step, of these mean lengths."""
    metrics = [
        {"phase": "train", "step": step, "time_s": seconds * step, "tokens": 1000.0, "length_mean": length}
        for step, length in enumerate(lengths, 1)
    ]
    return RecordedRun(Path(), load_run(EXAMPLE, []), metrics, [], {}, {})


def test_the_selector_is_compared_with_the_best_survivor():
    ways = [OURS, START, "tp4 / cp2", "tp4 / dp2"]
    runs = [
        RUN | {"way": OURS, "tokens_per_s": 120.0, "switches": 3},
        RUN | {"way": START, "tokens_per_s": 200.0, "episodes_truncated": 5},
        RUN | {"way": "tp4 / cp2"},
        RUN | {"way": "tp4 / dp2", "tokens_per_s": 60.0},
    ]
    records = [record(5, [10, 100, 200, 200]), record(1, [9]), record(10, [10, 100, 100]), record(9, [9])]
    found = summary(ways, runs, records)
    assert (found["best_static"], found["survivors"]) == ("tp4 / cp2", [OURS, "tp4 / cp2", "tp4 / dp2"])
    assert found["vs_best_static"] == pytest.approx(1.2)
    # The static run's mean over its steps is 70 at most: the selector's had that after its second step.
    assert found["alike_up_to_tokens"] == pytest.approx(70.0)
    assert found["vs_best_static_alike"] == pytest.approx(2.0)
    assert (found["oom"], found["truncated"], found["switches"]) == (0, 0, 3)
    assert not found["profiled"]
    decided = replace(records[0], decisions={"rollout": []})
    assert summary(ways, runs, [decided, *records[1:]])["profiled"]


def test_a_selectors_run_that_does_not_survive_has_no_ratio():
    runs = [RUN | {"way": OURS, "episodes_truncated": 2}, RUN | {"way": "tp4 / cp2"}]
    found = summary([OURS, "tp4 / cp2"], runs, [record(5, [10]), record(5, [10])])
    assert found["vs_best_static"] is None and found["vs_best_static_alike"] is None
    assert found["truncated"] == 2
