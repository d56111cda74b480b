"""Checks what `earl bench e2e` gives both sides and how it judges them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.e2e import command, earl_side, task
from benchmarks.e2e.environment import Sort
from benchmarks.e2e.settings import Settings, Trace, reached
from earl.models.tokenizer import scratch_tokenizer


def test_questions_fit_the_limits_and_vary_in_length() -> None:
    lengths = [len(task.numbers(seed)) for seed in range(2000)]
    assert min(lengths) == task.SHORTEST and max(lengths) == task.LONGEST
    tokenizer = scratch_tokenizer(task.WORDS)
    longest = max(range(2000), key=lambda seed: len(task.numbers(seed)))
    ids = tokenizer.encode(task.question(longest)).ids
    assert len(ids) == task.PROMPT_TOKENS
    assert tokenizer.token_to_id("<unk>") not in ids


def test_an_answer_is_scored_by_its_places() -> None:
    seed = next(seed for seed in range(1000) if len(set(task.numbers(seed))) == 4)
    right = sorted(task.numbers(seed))
    assert task.score(seed, " ".join(map(str, right))) == 1.0
    assert task.score(seed, " ".join(map(str, right[:-1]))) == 0.0
    swapped = [right[1], right[0], *right[2:]]
    assert task.score(seed, " ".join(map(str, swapped))) == 0.5 * (len(right) - 2) / len(right)
    assert task.score(seed, "") == 0.0


def test_the_environment_pays_what_trls_reward_function_pays() -> None:
    environment = Sort()
    assert environment.reset(5, {}).text == task.question(5)
    answer = " ".join(map(str, sorted(task.numbers(5))))
    result = environment.step(answer)
    assert result.done and result.reward == task.score(5, answer) == 1.0


def test_the_run_file_says_what_trl_is_told() -> None:
    settings = Settings(group_size=4, groups=3, lr=1e-4)
    config = earl_side.run_config(settings, Path("model"), Path("runs"), {"scheduler": {"staleness": 0}})
    assert (config.scheduler.group_size, config.scheduler.batch_groups) == (4, 3)
    assert config.scheduler.staleness == 0 and config.trainer.lr == 1e-4
    assert (config.trainer.minibatches, config.trainer.passes, config.trainer.loss_mean) == (1, 1, "token")
    assert len(earl_side.questions(settings)) == settings.groups * settings.steps


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
