"""A whole run with a teacher: the policy comes nearer to it, and its process ends before the run does."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from earl.config.load import load_run
from earl.config.model import ScratchModel
from earl.models.create import write_scratch
from tests.support.launched import TICTACTOE, Launched, assert_ledger_adds_up, launch_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Larger than the student in every size but the vocabulary.
TEACHER = ScratchModel(
    hidden_size=48, intermediate_size=96, layers=2, heads=6, kv_heads=2, max_positions=128, rope_theta=100.0,
    embedding_std=0.3, words=load_run(TICTACTOE).model.scratch.words,
)  # fmt: skip
LEARNS_FAST = {
    "trainer__lr": "1e-2", "trainer__lr_warmup_steps": "0", "trainer__kl_limit": "0",
    "trainer__max_grad_norm": "1.0", "trainer__epsilon": "1e-8", "trainer__entropy_coefficient": "0",
}  # fmt: skip


def write_teacher(directory: Path) -> Path:
    """A model with random weights that prefers few tokens."""
    write_scratch(directory / "teacher", TEACHER, 5, "float32")
    return directory / "teacher"


def trained(run: Launched) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run.run_directory / "metrics.jsonl").open()]
    return [line for line in lines if line["phase"] == "train"]


def test_a_smaller_policy_comes_near_its_teacher_which_then_leaves(tmp_path: Path) -> None:
    with launch_in(tmp_path, forked=True) as run:
        run.start(
            teacher__path=str(write_teacher(tmp_path)), teacher__tp="2", teacher__until="20",
            teacher__wean="true", teacher__score="0", environment__reward_range="[-2, 1]",
            trainer__kl_coefficient="0.001", warmup__batches="1", scheduler__steps="50",
            evaluation__episodes="0", **LEARNS_FAST,
        )  # fmt: skip
        run.until(r"teacher done")
        run.until(r"train \d+/50")  # and the run continues
        code, figures = run.finish()
        assert code == 0, run.said
        steps = trained(run)
        assert [step["step"] for step in steps] == list(range(1, 51))
        # Version 2 is that after the warm-up; the one that a step makes is the next.
        taught = [step for step in steps if step["version"] <= 20]
        for step in taught:
            assert step["teacher_weight"] == pytest.approx(1 - (step["reward_mean"] + 2) / 2), step["step"]
        first, last = (sum(step["kl_teacher"] for step in part) / 3 for part in (taught[:3], taught[-3:]))
        assert last < 0.6 * first, (first, last)
        later = steps[len(taught) :]
        assert all(step["teacher_weight"] == step["kl_teacher"] == 0 for step in later)
        assert all("teacher" not in step["stages"] and "reference" in step["stages"] for step in later)
        assert_ledger_adds_up(figures)
        run.assert_nothing_left()


def test_a_policy_that_is_better_than_its_teacher_is_weaned_at_once(tmp_path: Path) -> None:
    with launch_in(tmp_path, forked=True) as run:
        run.start(
            teacher__path=str(write_teacher(tmp_path)), teacher__wean="true", teacher__score="-1.5",
            environment__reward_range="[-2, 1]", warmup__batches="1", scheduler__steps="30",
            evaluation__episodes="0", **LEARNS_FAST,
        )  # fmt: skip
        run.until(r"teacher done")
        run.until(r"train \d+/30")
        code, _ = run.finish()
        assert code == 0, run.said
        steps = trained(run)
        assert len(steps) == 30
        assert all(step["teacher_weight"] == step["kl_teacher"] == 0 for step in steps)
        run.assert_nothing_left()


def test_a_run_that_is_stopped_while_it_is_taught_continues_with_its_teacher(tmp_path: Path) -> None:
    with launch_in(tmp_path, forked=True) as run:
        run.start(
            teacher__path=str(write_teacher(tmp_path)), teacher__until="45", warmup__batches="1",
            scheduler__steps="60", scheduler__train_limit_s="0", evaluation__episodes="0", **LEARNS_FAST,
        )  # fmt: skip
        run.until(r"train [1-9]\d*/60")
        assert run.process is not None
        run.process.send_signal(signal.SIGTERM)
        code, _ = run.finish()
        assert code == 130, run.said
        run.assert_nothing_left()
        before = trained(run)
        assert 1 <= len(before) < 43
        run.resume()
        run.until(r"teacher done")
        code, figures = run.finish()
        assert code == 0, run.said
        steps = trained(run)
        assert [step["step"] for step in steps] == list(range(1, 61))
        assert steps[: len(before)] == before
        for step in steps:
            assert step["teacher_weight"] == float(step["version"] <= 45), step["step"]
            assert (step["kl_teacher"] > 0) == (step["version"] <= 45), step["step"]
        assert_ledger_adds_up(figures)
        run.assert_nothing_left()


def test_a_teacher_with_another_tokenizer_ends_the_launch(tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_scratch(other, TEACHER.model_copy(update={"words": ["y", "z"]}), 5, "float32")
    with launch_in(tmp_path, forked=True) as run:
        run.start(teacher__path=str(other))
        code, figures = run.finish()
        assert code == 2 and not figures, run.said
        assert f"teacher.path = '{other}' has another tokenizer than the model from model.scratch" in run.said
        run.assert_nothing_left()
