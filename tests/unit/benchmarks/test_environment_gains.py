"""Checks what the learning benchmark says of each environment of a mixture, over seeds."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.environment_gains import environment_gains, environment_summary, with_start
from benchmarks.learning import summary
from earl.cli.lib.mixture_figures import by_environment
from services.scheduler.ledger.evaluation import environment_figures, judge
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.tickets import EpisodeResult


def run(seed: int, **lows: float | None) -> dict[str, Any]:
    """A seed's figures: for each environment the lower end of its gain's interval, None if it has no gain."""
    environments = {
        label: {"mean_reward": 0.75}
        | ({} if low is None else {"gain": low + 0.125, "gain_low": low, "gain_high": low + 0.25})
        for label, low in lows.items()
    }
    overall = {"gain": 0.5, "gain_low": 0.25, "start_mean_reward": 0.1, "mean_reward": 0.6, "seconds": 60.0}
    return {"seed": seed, **overall, "environments": environments}


def test_an_environment_has_learned_if_its_interval_lies_above_nothing_in_two_of_three_seeds() -> None:
    runs = [run(0, chess=0.5, words=0.25), run(1, chess=-0.25, words=0.0), run(2, chess=0.125, words=-0.5)]
    figures = environment_summary(runs)
    assert figures["environments"] == {
        "chess": {"seeds_improved": 2, "learned": True, "gain_median": 0.25, "gain_min": -0.125},
        "words": {"seeds_improved": 1, "learned": False, "gain_median": 0.125, "gain_min": -0.375},
    }
    assert figures["environments_missed"] == ["words"]
    rows = figures["environment_gains"]
    assert [(row["environment"], row["seed"], row["improved"]) for row in rows] == [
        ("chess", 0, True), ("chess", 1, False), ("chess", 2, True),
        ("words", 0, True), ("words", 1, False), ("words", 2, False),
    ]  # fmt: skip
    assert summary(runs)["environments_missed"] == ["words"]
    assert summary(runs)["seeds_improved"] == 3, "all environments together"


@pytest.mark.parametrize(
    ("improved", "seeds", "learned"),
    [(1, 1, True), (1, 2, False), (2, 2, True), (3, 5, False), (4, 5, True), (4, 6, True)],
)
def test_the_share_of_seeds_is_that_of_two_in_three(improved: int, seeds: int, learned: bool) -> None:
    runs = [run(seed, chess=0.5 if seed < improved else -0.5) for seed in range(seeds)]
    assert environment_summary(runs)["environments"]["chess"]["learned"] is learned


def test_an_environment_without_a_gain_has_not_improved() -> None:
    runs = [run(0, chess=None), run(1, chess=0.5), run(2, other=0.5)]
    figures = environment_summary(runs)
    assert figures["environments_missed"] == ["chess", "other"]
    assert figures["environments"]["chess"]["gain_median"] is None
    first, *_ = environment_gains(runs)
    assert (first["gain"], first["gain_low"], first["mean_reward"], first["improved"]) == (
        None,
        None,
        0.75,
        False,
    )


def test_a_run_of_one_environment_has_no_figures_of_environments() -> None:
    alone = {name: value for name, value in run(0).items() if name != "environments"}
    assert environment_summary([alone]) == environment_summary([]) == {}
    assert "environments" not in summary([alone])


def test_the_figures_of_a_ledger_s_evaluations_become_rows() -> None:
    """The names of the ledger's figures are those that the rows are made of; instances take turns."""
    labels = ["open_spiel/hex", "b.c"]

    def evaluation(name: str, version: int, values: list[float]) -> EvaluationRecord:
        record = EvaluationRecord(name=name, version=version, episodes=len(values), environments=labels)
        for index, value in enumerate(values):
            record = record.with_result(index, EpisodeResult(reward=value, metrics={}))
        return record

    start = evaluation("start", 1, [-1.0, 0.0] * 8)
    final = evaluation("final", 2, [1.0, 0.0] * 6 + [-1.0, 0.0] * 2)
    first, last = (by_environment(environment_figures(judge(record, start))) for record in (start, final))
    hex_row, other = environment_gains([{"seed": 7, "environments": with_start(last, first)}])
    assert (hex_row["environment"], hex_row["seed"], hex_row["gain"]) == ("open_spiel/hex", 7, 1.5)
    assert (hex_row["start_mean_reward"], hex_row["mean_reward"]) == (-1.0, 0.5)
    assert hex_row["improved"] and 0 < hex_row["gain_low"] < 1.5 < hex_row["gain_high"]
    assert (other["gain"], other["improved"]) == (0.0, False)
