"""Fig. 1: arms by their run files' keys, and what the figure makes of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.growing_context import EXAMPLE
from benchmarks.paper import fig1
from benchmarks.paper.settings import PaperSettings
from earl.cli.report.data import RecordedRun
from earl.config.load import load_run
from earl.env.serve import load
from earl.errors import ConfigError


def a_run(arm: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    success = changes.pop("success", [0.1 * step for step in range(1, 11)])
    shares = changes.pop("truncated", [0.0] * len(success))
    curves = {
        "success": success,
        "truncated": shares,
        "time_s": [10.0 * step for step in range(1, len(success) + 1)],
    }
    return {
        "seed": seed, "arm": arm, "complete": True, "score": success[-1], "out_of_memory": 0, "switches": 2,
        "truncated_episodes": 0, "curves": curves, **changes,
    }  # fmt: skip


def runs(**limited: Any) -> list[dict[str, Any]]:
    made = [a_run(arm, seed) for seed in (0, 1) for arm in (fig1.FREE, fig1.PENALTY)]
    return [*made, a_run(fig1.LIMIT, 0), a_run(fig1.LIMIT, 1, **limited)]


def test_every_arm_is_a_run_that_may_be_started():
    limit = fig1.limit_tokens()
    assert limit == load_run(EXAMPLE, fig1.SIZES).rollout.kv_tokens
    for arm in fig1.ARMS:
        config = load_run(EXAMPLE, fig1.overrides_of(arm, limit, 7))
        assert config.seed == 7 and config.scheduler.steps == fig1.STEPS
        # Nothing bounds EARL's contexts but the machine.
        bound = config.context_bound
        assert (bound.source, bound.tokens) == ("unknown", 256) if arm == fig1.FREE else bound.tokens == limit
        assert (config.scheduler.selector == "on") == (arm == fig1.FREE)
        entry = config.mixture[0].section
        [made] = [each for each in load(entry.serve).values() if each.name == entry.name]
        made().reset(1, entry.task)


def test_arms_take_turns():
    order = list(fig1.turns((0, 1, 2)))
    assert [arm for _, arm in order[::3]] == list(fig1.ARMS) and len(set(order)) == 9


def test_a_limit_that_costs_nothing_misses_the_claim():
    figures = fig1.summary(runs(), 200)
    # As good as the free arm and as its own peak, a mean of the last five steps.
    assert figures["collapse_max"] == pytest.approx(1.25)
    assert figures["truncated_later"] == 0.0 and figures["earl_switches"] == 2
    missed = fig1.figure(PaperSettings()).goals
    assert (
        figures["collapse_max"] > missed["collapse_max"]
        and figures["truncated_later"] < missed["truncated_later"]
    )


def test_of_every_figure_the_worst_seed_counts():
    limited = runs(success=[0.5] * 6 + [0.2] * 4, truncated=[0.01] * 5 + [0.3] * 5, score=0.2)
    figures = fig1.summary(limited, 200)
    assert [row["collapse"] for row in figures["seeds"]] == [1.25, 0.25]
    assert (
        figures["collapse_max"] == 1.25
        and figures["truncated_first_max"] == 0.01
        and figures["truncated_later"] == 0.0
    )
    limited[0] = a_run(fig1.FREE, 0, switches=1, out_of_memory=3, truncated_episodes=1)
    figures = fig1.summary(limited, 200)
    assert figures["earl_switches"] == 1
    assert figures["earl_out_of_memory_max"] == 3 and figures["earl_truncated_max"] == 1


def test_success_at_the_same_seconds_is_that_of_the_shortest_run():
    longer = a_run(fig1.FREE, success=[0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0])
    assert fig1.success_at(longer, 30.0) == pytest.approx(0.2)
    assert fig1.success_at(longer, 5.0) == 0.0
    assert fig1.peak(longer) == pytest.approx(0.88)


def test_a_run_that_failed_counts_as_one_that_did_not_end_and_earned_nothing():
    failed = [run | {"complete": False, "score": 0.0} if run["arm"] == fig1.FREE else run for run in runs()]
    figures = fig1.summary(failed, 200)
    assert figures["not_complete_max"] == 2
    assert all(row["score_earl"] == 0.0 for row in figures["seeds"])


@pytest.mark.parametrize("steps", [0, 3])
def test_a_limited_run_that_ends_early_loses_no_other_and_shows_no_collapse(steps: int):
    early = a_run(fig1.LIMIT, 1, success=[0.1, 0.2, 0.3], truncated=[0.3, 0.1, 0.1])
    early = early | {"complete": False, "score": 0.0}
    early["curves"] = {name: values[:steps] for name, values in early["curves"].items()}
    figures = fig1.summary([*runs()[:-1], early], 200)
    assert figures["collapse_max"] > 1 and figures["not_complete_max"] == 1
    assert figures["truncated_later"] == 0.0
    assert [row["score_earl"] for row in figures["seeds"]] == [pytest.approx(1.0)] * 2


def test_a_limited_policy_that_never_errs_has_its_ceiling():
    # 8 turns of 12 tokens in 100, of tasks of 1 to 20 turns.
    assert fig1.ceiling(fig1.LIMIT, 100) == 0.4 and fig1.ceiling(fig1.FREE, 100) == 1.0
    assert fig1.of_ceiling({"arm": fig1.LIMIT, "score": 0.4}, 100) == 1.0


def test_a_run_with_its_final_evaluation_is_complete(tmp_path: Path):
    metrics = [
        {"phase": "train", "step": step, "time_s": float(step), "length_mean": 20.0, "turns_mean": 2.0,
         "reward_mean": 0.1, "win_rate": 0.2, "truncated_episodes": 1, "sequences": 4}
        for step in (1, 2)
    ]  # fmt: skip
    # result.json of a launch, which has no word for its own end.
    result = {"win_rate": 0.5, "win_low": 0.4, "win_high": 0.6}
    config = load_run(EXAMPLE, [("scheduler.steps", "3")])
    evaluations = [{"name": "start", "version": 1}, {"name": "final", "version": 4}]
    run = RecordedRun(tmp_path, config, metrics, evaluations, {}, result)
    figures = fig1.figures_of(run)
    assert figures["complete"] is True and figures["score"] == 0.5
    assert figures["curves"]["truncated"] == [0.25, 0.25]
    early = fig1.figures_of(RecordedRun(tmp_path, config, metrics, evaluations[:1], {}, {}))
    assert early["complete"] is False and early["score"] == 0.0


def test_saved_runs_are_summed_up_anew(tmp_path: Path):
    saved = tmp_path / "paper-fig1-x.json"
    wrong = [run | {"complete": False, "score_low": 0.1} for run in runs()]
    saved.write_text(json.dumps({"limit_tokens": 200, "runs": wrong}))
    figure = fig1.figure(PaperSettings(runs_of=saved))
    assert figure.settings["runs_of"] == saved.name
    values = figure.made()
    assert values["not_complete_max"] == 0 and values["seeds"] == fig1.summary(runs(), 200)["seeds"]
    wrong[0]["score_low"] = None
    saved.write_text(json.dumps({"limit_tokens": 200, "runs": wrong}))
    assert figure.made()["not_complete_max"] == 1
    saved.write_text("{}")
    with pytest.raises(ConfigError, match="is no result of fig1"):
        figure.made()
