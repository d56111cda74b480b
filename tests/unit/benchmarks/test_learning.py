"""Checks what the learning benchmark says of its runs, and that it never throws a finished run away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.learning import (
    app,
    first_step,
    imitating,
    published,
    result_name,
    summary,
    task_counts,
    tasks_by_seed,
)
from earl.config.auto_dtype import resolve
from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.env.adapters.held_out import is_evaluation
from earl.env.base import Environment, Observation
from tests.support.paths import ROOT

ARITHMETIC = ROOT / "examples" / "smollm2_arithmetic.toml"
TOOL = ROOT / "examples" / "smollm2_tool.toml"


def run(seed: int, gain: float | None, low: float | None) -> dict[str, Any]:
    reward = None if gain is None else 0.1 + gain
    return {
        "seed": seed,
        "gain": gain,
        "gain_low": low,
        "start_mean_reward": 0.1,
        "mean_reward": reward,
        "seconds": 60.0 + seed,
    }


def test_a_seed_counts_as_improved_if_its_whole_interval_lies_above_nothing() -> None:
    found = summary([run(0, 0.3, 0.2), run(1, 0.1, -0.05), run(2, 0.2, 0.0)])
    assert (found["seeds"], found["seeds_improved"]) == (3, 1)
    assert found["gain_median"] == 0.2 and found["gain_min"] == 0.1
    assert found["seconds_max"] == 62.0
    failed = summary([run(0, 0.3, 0.2), run(1, None, None)])
    assert failed["seeds_improved"] == 1 and failed["gain_median"] is None


def test_what_was_finished_is_published_whatever_comes_after(tmp_path: Path) -> None:
    runs: list[dict[str, Any]] = []
    with (
        pytest.raises(KeyboardInterrupt),
        published("learning-x", {"compares": "this"}, runs, summary, tmp_path, as_json=False),
    ):
        runs.append(run(0, 0.3, 0.2))
        raise KeyboardInterrupt
    (path,) = tmp_path.glob("learning-x-*.json")
    result = json.loads(path.read_text())
    assert result["runs"] == runs and result["seeds_improved"] == 1 and result["compares"] == "this"


def test_a_run_file_without_both_evaluations_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, [str(ARITHMETIC), "--results", str(tmp_path), "--evaluation.at_end", "false"]
    )
    assert done.exit_code == 2 and "no gain" in done.output
    assert not list(tmp_path.iterdir())


def test_a_result_in_float32_does_not_take_the_place_of_one_in_bfloat16() -> None:
    requested = load_run(ARITHMETIC, [])
    named = [
        result_name("x", requested, resolve(requested, lambda _, native=native: native))
        for native in (True, False)
    ]
    assert named == ["learning-x", "learning-x-float32"]
    chosen = load_run(ARITHMETIC, [("rollout.dtype", "float32"), ("trainer.dtype", "float32")])
    assert result_name("x", chosen, chosen) == "learning-x"


def test_imitation_alone_has_at_least_as_many_episodes_and_one_step_that_must_be() -> None:
    overrides = imitating(1280, 128)
    assert overrides == [("warmup.batches", "10"), ("scheduler.steps", "1"), ("evaluation.at_end", "false")]
    assert dict(imitating(1281, 128))["warmup.batches"] == "11"
    config = load_run(TOOL, overrides)
    assert config.warmup.batches * config.warmup.batch_episodes == 1280 and config.evaluation.at_start


def test_the_first_step_is_timed_from_the_start_of_the_command(tmp_path: Path) -> None:
    assert first_step(tmp_path, 9.0) == {"first_step_s": None}
    lines = [("warmup", 5.0), ("train", 20.0), ("train", 30.0)]
    steps = [json.dumps({"phase": phase, "time_s": time_s}) + "\n" for phase, time_s in lines]
    (tmp_path / "metrics.jsonl").write_text("".join(steps))
    assert first_step(tmp_path, 60.0) == {"first_step_s": None}
    (tmp_path / "evaluations.jsonl").write_text('{"time_s": 10.0}\n{"time_s": 50.0}\n')
    assert first_step(tmp_path, 57.5) == {"first_step_s": 27.5}


class Sums(Environment):
    """Sums of two numbers below 4, of which the evaluation has only those with 0 first."""

    name = "test/sums"

    def reset(self, seed: int, task: dict[str, Any]) -> str:
        first = 0 if is_evaluation(seed) else 1 + seed % 3
        return f"{first} + {task['add'] if is_evaluation(seed) else 0} ="


class Later(Sums):
    """Sums whose episodes begin and end in coroutines, each with an object of its own."""

    name = "test/later"
    begun = ended = 0

    def __init__(self) -> None:
        self.used = False

    async def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        assert not self.used
        self.used = True
        Later.begun += 1
        return Observation(super().reset(seed, task))

    async def close(self) -> None:
        Later.ended += 1


class Wrong(Environment):
    """An environment that begins with a number, which no host accepts."""

    name = "test/wrong"

    def reset(self, seed: int, task: dict[str, Any]) -> int:
        return seed


def sums_config(environment: str, add: int = 2) -> RunConfig:
    named = [
        ("environment.serve", f"{__name__}:{environment}"),
        ("environment.name", f"test/{environment.lower()}"),
    ]
    config = load_run(TOOL, named)
    section = config.mixture[0].section.model_copy(update={"task": {"add": add}})
    return config.model_copy(update={"environment": section})


def test_repeated_and_reordered_tasks_are_counted() -> None:
    def counts(environment: str, trained: int, add: int = 2) -> dict[str, int]:
        config = sums_config(environment, add)
        return task_counts(tasks_by_seed([config])[config.seed], config, trained)

    # All 256 tasks of the evaluation are "0 + 2 =", and training has "2 + 0 =" among three texts.
    assert counts("Sums", 1280) == {"distinct_tasks": 1, "reordered_in_training": 256}
    assert counts("Sums", 1280, add=5) == {"distinct_tasks": 1, "reordered_in_training": 0}
    assert counts("Sums", 0)["reordered_in_training"] == 0
    assert counts("Later", 1280) == counts("Sums", 1280)
    assert Later.begun == Later.ended == 256 + 128 + 18 * 8


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ("Wrong", "reset returned int"),
        ("Missing", "cannot be imported"),
        ("Sums", "serves no 'test/missing'"),
    ],
)
def test_an_environment_that_does_not_start_here_leaves_the_counts_out(
    environment: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = sums_config(environment)
    if environment == "Sums":
        section = config.mixture[0].section.model_copy(update={"name": "test/missing"})
        config = config.model_copy(update={"environment": section})
    assert tasks_by_seed([config]) == {}
    out, err = capsys.readouterr()
    assert reason in err and err.count("\n") == 1 and not out
