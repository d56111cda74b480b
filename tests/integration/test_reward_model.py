"""Whole runs with a reward model: its scores are transformers', and kills change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification

from earl.parallelism import REWARD_MODEL
from earl.stack import plan
from earl.stack.rundir import to_toml
from tests.support.exact import Exact, Moment, Outcome
from tests.support.launched import assert_ledger_adds_up, launch_in
from tests.support.runs import tictactoe
from tests.support.scorer import write_scorer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_what_is_trained_was_scored_as_transformers_does(tmp_path: Path) -> None:
    scorer = write_scorer(tmp_path)
    config = tictactoe(
        tmp_path,
        reward_model={"path": str(scorer), "tp": 2, "coefficient": 0.5},
        trainer={"kl_coefficient": 0.01},
        # Files of the columns of what was trained.
        replay={"reuse": 1},
    )
    run_file = tmp_path / "scored.toml"
    run_file.write_text(to_toml(config.model_dump(mode="json")))
    with launch_in(tmp_path, forked=True) as run:
        run.run_file = run_file
        code, figures = run.start(scheduler__steps="4").finish()
        assert code == 0, run.said
        assert_ledger_adds_up(figures)
        lines = [json.loads(line) for line in (run.run_directory / "metrics.jsonl").open()]
        assert all("reward_model_mean" not in line for line in lines if line["phase"] != "train")
        last = lines[-1]
        assert last["phase"] == "train" and last["stages"]["reward_model"]["waiting"] == 0
        # The files of the last batch, which are those of the newest tickets, stay.
        files = sorted(
            (run.run_directory / "replay").glob("*.safetensors"),
            key=lambda file: int(file.stem.split("-")[0]),
        )
        played = files[-int(last["sequences"]) :]
        scores = scores_of(scorer, [load_file(file)["tokens"] for file in played])
        assert np.std(scores) > 0.0
        assert last["reward_model_mean"] == pytest.approx(float(np.mean(scores)), abs=1e-5)
        run.assert_nothing_left()


def scores_of(directory: Path, sequences: list[np.ndarray]) -> list[float]:
    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    # A policy that has learned little may end with a pad token, and that one is scored.
    model.config.pad_token_id = None
    with torch.no_grad():
        return [
            float(model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0, 0]) for tokens in sequences
        ]


async def test_a_run_that_is_killed_makes_the_same_tokens_and_parameters(tmp_path: Path) -> None:
    scorer = write_scorer(tmp_path)
    undisturbed, run = await played(tmp_path / "whole", scorer, kills=False)
    disturbed, again = await played(tmp_path / "killed", scorer, kills=True)
    assert disturbed == undisturbed and again == run
    # They count: without a reward model the parameters are others.
    async with Exact(tmp_path / "without") as other:
        await other.up()
        await other.finish()
        assert other.outcome().steps != undisturbed.steps


async def played(directory: Path, scorer: Path, *, kills: bool) -> tuple[Outcome, list[Any]]:
    """(what came of a run; its steps' mean scores)."""
    section = {"path": str(scorer), "dp": 2}
    async with Exact(directory, reward_model=section, replay={"reuse": 1}) as run:
        await run.up()
        if kills:
            assert await run.until(Moment("trajectory_ready", version=3, count=4))
            await run.replace(REWARD_MODEL)
            assert await run.until(Moment("batch_committed", version=5))
            await run.kill_all()
            await run.up()
            assert await run.until(Moment("trajectory_ready", version=5, count=5))
            await run.replace(plan.SCHEDULER)
        await run.finish()
        lines = map(json.loads, (run.stack.directory / "metrics.jsonl").open())
        means = {line["version"]: line["reward_model_mean"] for line in lines if "reward_model_mean" in line}
        assert len(means) == 4
        return run.outcome(), sorted(means.items())
