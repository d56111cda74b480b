"""Checks the figures of the retention benchmark, and the runs that it makes of its run file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import retain
from benchmarks.retain import RUN_FILE, Games, compared, points_by_label, run_of, summary, trained_on
from earl.config.load import load_run
from earl.config.run import RunConfig

CONFIG = load_run(RUN_FILE)
NAMES = Games.of(CONFIG)
OLD, NEW = NAMES.old.label, NAMES.new.label


def run(seed: int, new: float | None, old: float, low: float, seconds: float = 900.0) -> dict[str, Any]:
    return {
        "seed": seed, "new_vs_specialist": new, "old_kept": old, "old_kept_low": low,
        "old_kept_without": 0.5 + 0.1 * seed, "seconds": seconds,
    }  # fmt: skip


def test_points_are_of_each_environment_in_turns() -> None:
    assert points_by_label([1.0, 0.0, 0.5, 0.25], ["a", "b"]) == {"a": [1.0, 0.5], "b": [0.0, 0.25]}


def test_policies_are_compared_game_by_game() -> None:
    points = {
        "old": {OLD: [1.0, 1.0, 0.5, math.nan], NEW: [0.0] * 4},
        "with": {OLD: [1.0, 1.0, 0.5, 1.0], NEW: [1.0, 0.5, 0.5, 1.0]},
        "without": {OLD: [0.5, 0.5, 0.25, 0.0], NEW: [1.0] * 4},
        "specialist": {OLD: [0.0] * 4, NEW: [1.0] * 4},
    }
    figures = compared(points, NAMES)
    assert figures["old_kept"] == figures["old_kept_low"] == figures["old_kept_high"] == 1.0
    assert figures["old_kept_without"] == 0.5 and figures["new_vs_specialist"] == 0.75
    assert figures["new_vs_specialist_low"] < 0.75 < figures["new_vs_specialist_high"]
    assert figures["scores"]["old"][OLD] == pytest.approx(2.5 / 3)


def test_the_worst_seed_decides_and_missed_goals_are_named() -> None:
    met = summary([run(0, 0.95, 1.0, 0.98), run(1, 0.92, 0.99, 0.975)])
    assert met["new_vs_specialist"] == 0.92 and met["old_kept_low"] == 0.975
    assert met["old_kept_without"] == pytest.approx(0.55) and met["missed"] == []
    lost = summary([run(0, 0.8, 0.99, 0.96), run(1, 0.95, 1.0, 0.98, seconds=1300.0)])
    assert lost["missed"] == ["new_vs_specialist", "old_kept_low", "seconds_max"]
    unknown = summary([run(0, None, 1.0, 0.98)])
    assert unknown["new_vs_specialist"] is None and unknown["missed"] == ["new_vs_specialist"]


def test_the_runs_differ_in_what_is_compared_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: dict[str, RunConfig] = {}
    monkeypatch.setattr(retain, "to_end", lambda config: made.setdefault(config.name, config))
    for stage in ("legal", "old"):
        (tmp_path / stage / "model-final").mkdir(parents=True)
        (tmp_path / stage / "model-final" / "config.json").write_text(
            '{"num_attention_heads": 8, "num_key_value_heads": 8}'
        )
    legal, old = tmp_path / "legal", tmp_path / "old"
    config = CONFIG.model_copy(update={"runs_dir": str(tmp_path)})
    run_of(config, "legal", steps=0)
    run_of(config, "with", old, protects=True)
    run_of(config, "without", old, entries=[NAMES.new])
    run_of(config, "specialist", legal, entries=[NAMES.new])
    rules, protected, without, specialist = made.values()
    assert rules.warmup == CONFIG.warmup and not rules.model.path and not rules.scheduler.steps
    assert protected.environments == CONFIG.environments and protected.evaluation == CONFIG.evaluation
    assert protected.trainer == CONFIG.trainer and protected.warmup.batches == 0
    assert protected.model.path == without.model.path == str(old / "model-final")
    share = round(CONFIG.scheduler.batch_groups * NAMES.new.share)
    for alone in (without, specialist):
        assert [entry.label for entry in alone.mixture] == [NEW]
        assert alone.scheduler.batch_groups == share and alone.scheduler.steps == CONFIG.scheduler.steps
        assert not alone.trainer.uses_reference and not alone.evaluation.episodes
    assert specialist.model.path == str(legal / "model-final")
    without = without.model_copy(update={"name": specialist.name, "model": specialist.model})
    assert without == specialist, "the same but for where they begin"


def test_the_episodes_of_a_step_that_was_done_again_count_once(tmp_path: Path) -> None:
    key = f"environments.{NEW}.sequences"
    lines = [
        {"step": 1, "phase": "warmup", key: 100.0},
        {"step": 1, "phase": "train", key: 60.0},
        {"step": 2, "phase": "train", key: 64.0},
        {"step": 2, "phase": "train", key: 56.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert trained_on(tmp_path, NEW) == 116
