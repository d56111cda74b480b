"""A whole run that begins with a teacher: it records, is interrupted, goes on, imitates, and weans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from earl.recorded_episodes import IMITATED, RECORDED, read_episodes
from tests.integration.test_teacher_run import TEACHER, write_teacher
from tests.support.launched import assert_ledger_adds_up, launch_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_policy_begins_with_what_its_teacher_has_played(tmp_path: Path) -> None:
    with launch_in(tmp_path, forked=True) as run:
        keys = {
            "teacher__path": str(write_teacher(tmp_path)), "teacher__episodes": "96", "teacher__wean": "true",
            "environment__reward_range": "[-1, 1]", "environment__task": '{ illegal_reward = -0.5 }',
            "warmup__batches": "8", "warmup__batch_episodes": "48", "warmup__minibatches": "4",
            "warmup__lr": "0.02", "scheduler__steps": "3", "evaluation__episodes": "0",
        }  # fmt: skip
        run.start(**keys)
        code, figures = run.finish()
        assert code == 0, run.said
        assert_ledger_adds_up(figures)
        recording = tmp_path / f"{run.name}-teacher"
        file = read_episodes(recording / RECORDED)
        assert len(file.episodes) == 96
        assert (run.run_directory / IMITATED).read_bytes() == (recording / RECORDED).read_bytes()
        lines = [json.loads(line) for line in (run.run_directory / "metrics.jsonl").open()]
        assert {line["recorded_episodes"] for line in lines} == {96.0}
        warmup = [line for line in lines if line["phase"] == "warmup"]
        assert len(warmup) == 8 and warmup[-1]["loss"] < 0.8 * warmup[0]["loss"]
        # Twice 48 are one epoch: all that was recorded, once.
        for first, second in zip(warmup[::2], warmup[1::2], strict=True):
            mean = (first["reward_mean"] + second["reward_mean"]) / 2
            assert mean == pytest.approx(file.reward_mean)
        settled = json.loads((run.run_directory / "run.json").read_text())
        assert settled["teacher"]["score"] == pytest.approx(file.reward_mean)
        for step in (line for line in lines if line["phase"] == "train"):
            least = 1 - (step["reward_mean"] + 1) / (file.reward_mean + 1)
            assert step["teacher_weight"] == pytest.approx(min(1.0, max(0.0, least)))
        run.assert_nothing_left()
    assert TEACHER.hidden_size != 32  # the student's: other sizes
