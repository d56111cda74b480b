"""A whole run of two environments, one with a task set: killed in mid-epoch, resumed, and what it played."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from earl.config.run import RunConfig
from earl.stack.task_sets import task_sets_of
from services.scheduler.state.mixture import group_size_at, instance_at, share_at
from services.scheduler.state.rules import rules_of
from services.scheduler.state.tickets import Purpose
from services.trainer.checkpoint.export import write
from tests.support.launched import TICTACTOE, Launched, assert_ledger_adds_up, launch_in

pytestmark = pytest.mark.timeout(300)

STEPS = 16
ENVIRONMENTS = """
[[environments]]
name = "open_spiel/tic_tac_toe"
label = "as x"
serve = "earl.env.adapters.open_spiel:environments"
weight = 2
max_turns = 5
instances = 30
held_out = 0.4

[[environments]]
name = "open_spiel/tic_tac_toe"
label = "as o"
serve = "earl.env.adapters.open_spiel:environments"
task = { player = 1 }
group_size = 2
reward_range = [-1, 1]
"""


PROTECTED = ENVIRONMENTS.replace("reward_range = [-1, 1]", "reward_range = [-1, 1]\nprotected = true")


def mixed_run_file(directory: Path, environments: str = ENVIRONMENTS) -> Path:
    text = TICTACTOE.read_text(encoding="utf-8")
    section = re.search(r"^\[environment\]\n(?:.+\n)+", text, re.MULTILINE)
    assert section is not None
    path = directory / "mixed.toml"
    path.write_text(text.replace(section[0], "") + environments, encoding="utf-8")
    return path


def test_a_mixture_is_killed_resumed_and_plays_what_its_seed_says(tmp_path: Path) -> None:
    with launch_in(tmp_path, forked=True) as run:
        run.run_file = mixed_run_file(tmp_path)
        run.start(scheduler__steps=str(STEPS), scheduler__staleness="0")
        run.until(r"train \d+/")
        run.kill("services.scheduler")
        code, figures = run.finish()
        assert code == 0, run.said
        assert_played(run, figures)
        run.assert_nothing_left()


def assert_played(run: Launched, figures: dict) -> None:
    config = RunConfig.model_validate_json((run.run_directory / "run.json").read_bytes())
    rules = rules_of(config, task_sets_of(config, run.run_directory))
    groups = config.scheduler.batch_groups
    lines = [json.loads(line) for line in (run.run_directory / "metrics.jsonl").open()]
    steps = {line["step"]: line for line in lines if line["phase"] == "train"}
    assert sorted(steps) == list(range(1, STEPS + 1))
    for step, line in steps.items():
        wanted: Counter[str] = Counter()
        for place in range((step - 1) * groups, step * groups):
            wanted[share_at(rules, Purpose.TRAIN, place).label] += group_size_at(rules, Purpose.TRAIN, place)
        played = {label: line.get(f"environments.{label}.sequences", 0) for label in ("as x", "as o")}
        assert played == {label: wanted[label] for label in played}, step
    samples = [json.loads(line) for line in (run.run_directory / "samples.jsonl").open()]
    assert {
        (sample["environment"], sample.get("task", -1)) for sample in samples if not sample["evaluation"]
    } <= {
        (instance.environment, instance.task)
        for place in range(STEPS * groups)
        for instance in [instance_at(rules, Purpose.TRAIN, place)]
    }
    assert {sample["environment"] for sample in samples if sample["evaluation"] == "final"} == {
        "as x",
        "as o",
    }
    assert_ledger_adds_up(figures)
    assert figures["trained"] == 2 * 16 + sum(
        group_size_at(rules, Purpose.TRAIN, place) for place in range(STEPS * groups)
    )
    assert figures["environments"].keys() == {"as x", "as o"}
    for judged in figures["environments"].values():
        assert judged["gain_low"] <= judged["gain"] <= judged["gain_high"]
    assert re.search(r"\n  as o: win rate .* gain .* over the start", run.said)


@pytest.mark.slow
def test_a_version_that_loses_a_protected_environment_is_neither_best_nor_exported(tmp_path: Path) -> None:
    """A learning rate that no policy survives: the later versions are refused, the first one is the model."""
    with launch_in(tmp_path) as run:
        run.run_file = mixed_run_file(tmp_path, PROTECTED)
        run.start(
            scheduler__steps="3", scheduler__train_limit_s="0", trainer__lr="0.3", trainer__kl_limit="0",
            trainer__max_grad_norm="1e9", trainer__lr_warmup_steps="0", trainer__protected_kl="0.01",
            model__scratch__hidden_size="64", model__scratch__intermediate_size="176", warmup__batches="3",
            warmup__batch_episodes="512", warmup__minibatches="32", warmup__passes="3",
            evaluation__episodes="128", rollout__max_sequences="256",
        )  # fmt: skip
        code, figures = run.finish()
        assert code == 0, run.said
        directory = run.run_directory
        lost = figures["environments"]["as o"]
        assert lost["retained"] == 0 and lost["kept_high"] < 0.97
        assert "retained" not in figures["environments"]["as x"]
        assert figures["best_version"] == 4, "the version after the warm-up"
        assert re.search(r"\nversion 7 is refused: of the first score, as o 0\.\d\d \[", run.said)
        assert "\nno later version kept every protected environment: the best one" in run.said
        assert (directory / "checkpoints" / "best").resolve().name == "step-4"
        exported = tmp_path / "exported"
        written = write(directory, exported, "default")
        assert written.checkpoint.name == "step-4" and written.record.version == 4
        newest = write(directory, tmp_path / "newest", "latest")
        assert newest.checkpoint.name == "step-7"
        weights = [
            load_file(each / "model.safetensors")
            for each in (directory / "model-final", exported, tmp_path / "newest")
        ]
        for name, tensor in weights[0].items():
            assert torch.equal(tensor, weights[1][name]), name
        assert any(not torch.equal(tensor, weights[2][name]) for name, tensor in weights[0].items())
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").open()]
        assert lines[-1]["phase"] == "train" and lines[-1]["kl_reference"] > 0
        run.assert_nothing_left()
