"""Checks what `earl bench e2e` gives both sides and how it judges them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.e2e import command, earl_side, trl_process, vllm_sampler
from benchmarks.e2e.environment import ENVIRONMENTS
from benchmarks.e2e.settings import Settings, Trace, reached
from benchmarks.e2e.task import EQUAL, TASKS, UNEQUAL, WORDS, SortTask
from benchmarks.record.checkout import ROOT
from earl.env.serve import load
from earl.errors import ConfigError, ProcessFailed
from earl.models.tokenizer import scratch_tokenizer

EVERY_TASK = pytest.mark.parametrize("sort", TASKS.values(), ids=TASKS)


@EVERY_TASK
def test_questions_fit_the_limits(sort: SortTask) -> None:
    lengths = [len(sort.numbers(seed)) for seed in range(2000)]
    assert min(lengths) == sort.shortest and max(lengths) == sort.longest
    tokenizer = scratch_tokenizer(WORDS)
    longest = max(range(2000), key=lambda seed: len(sort.numbers(seed)))
    ids = tokenizer.encode(sort.question(longest)).ids
    assert len(ids) == sort.prompt_tokens
    assert tokenizer.token_to_id("<unk>") not in ids


def test_lengths_vary_in_one_task_and_are_equal_in_the_other() -> None:
    unequal = [len(UNEQUAL.numbers(seed)) for seed in range(2000)]
    assert len(set(unequal)) == 1 + UNEQUAL.longest - UNEQUAL.shortest
    equal = {len(EQUAL.numbers(seed)) for seed in range(2000)}
    assert equal == {round(sum(unequal) / len(unequal) + 0.5)}


def test_an_answer_is_scored_by_its_places() -> None:
    seed = next(seed for seed in range(1000) if len(set(UNEQUAL.numbers(seed))) == 4)
    right = sorted(UNEQUAL.numbers(seed))
    assert UNEQUAL.score(seed, " ".join(map(str, right))) == 1.0
    assert UNEQUAL.score(seed, " ".join(map(str, right[:-1]))) == 0.0
    swapped = [right[1], right[0], *right[2:]]
    assert UNEQUAL.score(seed, " ".join(map(str, swapped))) == 0.5 * (len(right) - 2) / len(right)
    assert UNEQUAL.score(seed, "") == 0.0


@EVERY_TASK
def test_the_environment_pays_what_trls_reward_function_pays(sort: SortTask) -> None:
    environment = ENVIRONMENTS[sort.name]()
    assert environment.reset(5, {}).text == sort.question(5)
    answer = " ".join(map(str, sorted(sort.numbers(5))))
    result = environment.step(answer)
    assert result.done and result.reward == sort.score(5, answer) == 1.0


def test_the_run_file_says_what_trl_is_told() -> None:
    settings = Settings(group_size=4, groups=3, lr=1e-4)
    config = earl_side.run_config(settings, Path("model"), Path("runs"), {"scheduler": {"staleness": 0}})
    assert (config.scheduler.group_size, config.scheduler.batch_groups) == (4, 3)
    assert config.scheduler.staleness == 0 and config.trainer.lr == 1e-4
    assert (config.trainer.minibatches, config.trainer.passes, config.trainer.loss_mean) == (1, 1, "token")
    assert len(earl_side.questions(settings)) == settings.groups * settings.steps


@EVERY_TASK
def test_the_run_file_serves_the_task_with_room_for_its_answers(sort: SortTask) -> None:
    config = earl_side.run_config(Settings(task=sort.name), Path("model"), Path("runs"), {})
    assert config.rollout.max_new_tokens == sort.answer_tokens
    assert config.rollout.max_context_tokens == sort.prompt_tokens + sort.answer_tokens
    assert config.environment is not None
    served = load(config.environment.serve)[config.environment.name]
    assert served is ENVIRONMENTS[sort.name]


def test_tasks_are_chosen_by_name() -> None:
    assert command.task_names("equal,unequal") == ["unequal", "equal"]
    assert command.task_names("equal") == ["equal"]
    with pytest.raises(typer.BadParameter, match="'even', which is none of unequal, equal"):
        command.task_names("equal,even")


def trace(rewards: list[float], step_s: float, began_s: float = 5.0) -> Trace:
    times = [began_s + step_s * (number + 1) for number in range(len(rewards))]
    return Trace(times_s=times, rewards=rewards, began_s=began_s)


def test_the_threshold_is_met_by_a_full_window() -> None:
    settings = Settings(window=3, threshold=0.5)
    assert not reached([1.0, 1.0], settings)
    assert reached([0.0, 1.0, 0.5, 0.5], settings)
    figures = trace([0.0, 0.1, 0.5, 0.9, 0.9], 2.0).figures(settings)
    assert figures["reached"] and figures["steps"] == 4
    assert figures["seconds"] == 13.0 and figures["seconds_without_start"] == 8.0
    never = trace([0.1, 0.2], 2.0).figures(settings)
    assert not never["reached"] and never["seconds"] is None and never["steps"] == 2


def seed_run(earl: Trace, trl: Trace, settings: Settings) -> dict[str, Any]:
    return {
        side: {**one.figures(settings), "times_s": one.times_s}
        for side, one in (("earl", earl), ("trl", trl))
    }


def test_a_side_that_never_gets_there_is_not_left_out() -> None:
    settings = Settings(window=1, threshold=0.5)
    good, slow = trace([0.0, 0.6], 1.0), trace([0.0, 0.6], 4.0)
    never = trace([0.0, 0.1, 0.2], 4.0)
    runs = [seed_run(good, slow, settings), seed_run(never, slow, settings), seed_run(good, never, settings)]
    found = command.summary(runs)
    assert found["speedups"] == [pytest.approx(13 / 7, abs=1e-3), 0.0, pytest.approx(17 / 7, abs=1e-3)]
    assert found["earl_reached"] == 2 and found["trl_reached"] == 2
    assert found["speedup_vs_trl_without_start"] == 4.0


def test_the_sampler_that_would_be_done_first_is_chosen() -> None:
    slow_start = {"start_s": 60.0, "step_s": 1.0, "seconds": 124.0}
    outcomes = {
        "generate": {"start_s": 4.0, "step_s": 1.5, "seconds": 100.0},
        "continuous": {"error": "..."},
        "vllm": slow_start,
    }
    assert trl_process.fastest(outcomes) == "generate"
    with pytest.raises(ProcessFailed, match="none of TRL's samplers"):
        trl_process.fastest({"generate": {"error": "..."}})


def test_a_sampler_that_cannot_be_had_leaves_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def home(name: str, script: str) -> trl_process.Home:
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        return trl_process.Home(str(tmp_path / name), f"setup-{name}")

    written = '{"times_s": [4, 6, 8], "rewards": [0, 0, 0], "began_s": 2.0}'
    works = home("works", f"echo '{written}' > ${{3%-request.json}}.json")
    samplers = {
        "generate": works,
        "continuous": home("breaks", "echo no such library; exit 3"),
        "vllm": trl_process.Home(str(tmp_path / "absent"), "setup-absent"),
        "vllm-compiled": replace(works, compiles=True),
    }
    monkeypatch.setattr(trl_process, "SAMPLERS", samplers)
    outcomes = trl_process.trials(Settings(steps=1), tmp_path, tmp_path)
    assert outcomes["generate"] == {
        "start_s": 2.0,
        "step_s": 2.0,
        "seconds": 2.0 + 2 * trl_process.PROJECTED_STEPS,
    }
    assert outcomes["vllm-compiled"] == {"first_start_s": 2.0, **outcomes["generate"]}
    assert "no such library" in outcomes["continuous"]["error"]
    assert "make setup-absent" in outcomes["vllm"]["error"]
    assert trl_process.fastest(outcomes) == "generate"
    with pytest.raises(ConfigError, match="setup-absent"):
        trl_process.require("vllm")
    with pytest.raises(ConfigError, match="none of TRL's samplers"):
        trl_process.require("beam")


def test_the_documentation_shows_the_adapter_that_runs() -> None:
    source = Path(vllm_sampler.__file__).read_text()
    shown = source.partition("from typing import Any\n")[2].strip()
    assert f"```python\n{shown}\n```" in (ROOT / "docs" / "benchmarks.md").read_text()
