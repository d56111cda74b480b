"""A whole run with rewards of single turns: the column says what each turn earned, for the trainer."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from earl.stack.rundir import to_toml
from tests.support.launched import assert_ledger_adds_up, launch_in
from tests.support.runs import tictactoe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TURNS = 3
# Each step earns its digit, in eighths, and an illegal one a loss; the last one no more than others.
ENVIRONMENT = """
from earl.env import Environment, Observation, StepResult


class Paid(Environment):
    name = "test/paid"
    description = "Every digit is worth itself."
    reward_range = (-3.0, 3.0)
    blocking = False

    def reset(self, seed: int, task: dict) -> Observation:
        self.left = 3
        return self._observe()

    def step(self, action: str) -> StepResult:
        self.left -= 1
        digit = action.strip(" []")
        reward = int(digit) / 8 if digit.isdecimal() else -1.0
        return StepResult(self._observe(), reward, done=self.left == 0)

    def _observe(self) -> Observation:
        return Observation("x o", [f"[{digit}]" for digit in range(9)])
"""


def test_each_turn_is_credited_for_what_it_earned(tmp_path: Path) -> None:
    (tmp_path / "paid.py").write_text(textwrap.dedent(ENVIRONMENT))
    config = tictactoe(
        tmp_path,
        environment={"name": "test/paid", "serve": "paid:Paid"},
        trainer={"credit": "gae", "turn_rewards": True, "minibatches": 2},
        scheduler={"advantage": "reward", "steps": 4},
        # Files of the columns of what was trained.
        replay={"reuse": 1},
        evaluation={"episodes": 0},
    )
    run_file = tmp_path / "paid.toml"
    run_file.write_text(to_toml(config.model_dump(mode="json")))
    with launch_in(tmp_path, forked=True) as run:
        run.run_file = run_file
        code, figures = run.start(evaluation__episodes="0").finish()
        assert code == 0, run.said
        assert_ledger_adds_up(figures)
        lines = [json.loads(line) for line in (run.run_directory / "metrics.jsonl").open()]
        assert [line["step"] for line in lines if line["phase"] == "train"] == [1, 2, 3, 4]
        words = Tokenizer.from_file(str(run.run_directory / "model" / "tokenizer.json"))
        columns = [load_file(file) for file in (run.run_directory / "replay").glob("*.safetensors")]
        assert len(columns) >= 16
        for each in columns:
            check(each, words)
        run.assert_nothing_left()


def check(columns: dict[str, np.ndarray], words: Tokenizer) -> None:
    """Rewards are where and what the tokens of the actions say."""
    mask, rewards = columns["loss_mask"], columns["rewards"]
    starts = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0) == 1)
    stops = np.flatnonzero(np.diff(mask.astype(np.int8), append=0) == -1)
    assert len(starts) == TURNS
    expected = np.zeros(len(mask), np.float32)
    for start, stop in zip(starts, stops, strict=True):
        text = words.decode(columns["tokens"][start : stop + 1].tolist(), skip_special_tokens=True)
        digit = text.strip(" []")
        expected[stop] = int(digit) / 8 if digit.isdecimal() else -1.0
    np.testing.assert_array_equal(rewards, expected)
