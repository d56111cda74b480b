"""The table of a mixture's environments on the page: weights, the last steps, evaluations, endings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from earl.cli.lib.run_directory import config_of
from earl.cli.report.page import write_report
from earl.cli.report.sections import mixture
from earl.cli.report.sections.history import RunHistory
from earl.cli.report.sections.mixture import MixtureTable
from earl.obs.metrics import LineFile
from tests.support.recorded import mixed, recorded
from tests.support.report_file import report_data
from tests.support.runs import tictactoe

LABELS = ("one/tic", "self.play")


def table(tmp_path: Path, **environment: Any) -> MixtureTable:
    return MixtureTable(mixed(tictactoe(tmp_path, environment=environment), LABELS))


def step(number: int, label: str, **figures: float) -> dict[str, Any]:
    named = {f"environments.{label}.{name}": value for name, value in figures.items()}
    return {"step": number, "version": number + 1, "phase": "train", **named}


def rows(table: MixtureTable) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in table.section([], winners=True)["rows"]}


def test_the_report_of_a_mixture_holds_its_table(tmp_path: Path):
    recorded(tmp_path, environments=LABELS)
    section = report_data(write_report(tmp_path))["sections"]["mixture"]
    assert (section["steps"], section["winners"], section["evaluation"]) == (8, True, "final")
    first, second = section["rows"]
    assert (first["label"], second["label"]) == LABELS
    assert (round(first["weight"], 3), first["trained_share"]) == (0.333, 0.5)
    assert (first["reward_mean"], second["reward_mean"]) == (0.0, 1.0)
    assert (first["staleness_mean"], first["staleness_max"], second["staleness_mean"]) == (1, 1, 0)
    assert first["length_mean"] < first["length_max"]
    # 64 episodes a step in turns; 1, 2 and 3 of the last steps are truncated, and one was lost.
    assert (first["endings"]["ok"], first["endings"]["truncated"], first["endings"]["infra_error"]) == (
        380,
        4,
        1,
    )
    line = json.loads((tmp_path / "evaluations.jsonl").read_text().splitlines()[-1])
    for name in ("win_rate", "mean_reward", "gain"):
        value, low, high = second["evaluated"][name]
        assert low < value < high and round(line[f"environments.self.play.{name}"], 4) == round(value, 4)


def test_a_run_of_one_environment_has_no_rows(tmp_path: Path):
    recorded(tmp_path, steps=3)
    section = RunHistory(tmp_path, config_of(tmp_path)).update()["mixture"]
    assert section["rows"] == [] and section["seats"] == []


def test_seats_have_rows_whether_there_are_other_environments_or_not(tmp_path: Path):
    in_mixture = table(tmp_path)
    in_mixture.add_steps([step(1, "self.play", **{"seats.1.win_rate": 0.25, "seats.0.win_rate": 0.75})])
    seats = in_mixture.section([], winners=True)["seats"]
    assert [(row["label"], row["seat"], row["win_rate"]) for row in seats] == [
        ("self.play", 0, 0.75), ("self.play", 1, 0.25),
    ]  # fmt: skip
    alone = MixtureTable(tictactoe(tmp_path, environment={"seats": 2}))
    figures = {"seats.0.reward_mean": 0.5, "seats.0.turns_mean": 4.0, "seats.1.reward_mean": -0.5}
    alone.add_steps([{"step": 1, "version": 2, "phase": "train", **figures}])
    alone.add_steps([{"step": 2, "version": 3, "phase": "train", "seats.0.reward_mean": 0.25}])
    section = alone.section([], winners=True)
    assert section["rows"] == [] and section["steps"] == 2
    assert section["seats"] == [
        {"label": "", "seat": 0, "reward_mean": 0.375, "win_rate": 0.0, "turns_mean": 2.0},
        {"label": "", "seat": 1, "reward_mean": -0.5, "win_rate": 0.0, "turns_mean": 0.0},
    ]
    # A step that is done again takes back the one before.
    alone.add_steps([{"step": 1, "version": 2, "phase": "train", "seats.0.reward_mean": -1.0}])
    assert [row["reward_mean"] for row in alone.section([], winners=True)["seats"]] == [-1.0]


def test_an_ending_alone_changes_the_table_of_a_mixture(tmp_path: Path):
    recorded(tmp_path, steps=3, environments=LABELS)
    history = RunHistory(tmp_path, config_of(tmp_path))
    history.update()
    assert history.update() == {}
    file = LineFile(tmp_path / "endings.jsonl")
    file.write({"time_s": 99.0, "ok": 0, "timeout": 5, "environments": {"one/tic": {"timeout": 5}}})
    file.close()
    changed = history.update()
    assert changed.keys() == {"endings", "mixture"}
    assert changed["mixture"]["rows"][0]["endings"]["timeout"] == 5


def test_figures_are_over_the_trajectories_of_the_last_steps(tmp_path: Path):
    made = table(tmp_path)
    made.add_steps([step(1, "one/tic", sequences=100.0, reward_mean=9.0, staleness_max=7.0)])
    made.add_steps(step(number, "self.play", sequences=1.0) for number in range(2, mixture.WINDOW + 1))
    made.add_steps(
        [
            step(20, "one/tic", sequences=2.0, reward_mean=1.0, truncated_episodes=1.0, staleness_max=1.0),
            step(21, "one/tic", sequences=6.0, reward_mean=0.0, truncated_episodes=1.0, staleness_max=0.0),
        ]
    )
    shown = rows(made)
    assert shown["one/tic"]["reward_mean"] == 0.25 and shown["one/tic"]["truncated_share"] == 0.25
    assert shown["one/tic"]["staleness_max"] == 1.0 and shown["one/tic"]["trained"] == 108
    # A step of warm-up is none, and one that is not in the window gives no figure.
    made.add_steps([{"step": 1, "version": 30, "phase": "warmup", "environments.one/tic.sequences": 5.0}])
    assert rows(made)["one/tic"]["trained"] == 108
    other = table(tmp_path)
    assert rows(other)["one/tic"]["reward_mean"] is None and rows(other)["one/tic"]["trained_share"] == 0


def test_a_step_that_was_rolled_back_does_not_count(tmp_path: Path, monkeypatch):
    made = table(tmp_path)
    made.add_steps(step(number, "one/tic", sequences=1.0, reward_mean=1.0) for number in range(1, 6))
    made.add_steps([step(4, "one/tic", sequences=3.0, reward_mean=0.0)])
    assert rows(made)["one/tic"]["trained"] == 6 and rows(made)["one/tic"]["reward_mean"] == 0.5
    # Of older steps a sum is kept.
    monkeypatch.setattr(mixture, "KEPT", 2)
    made.add_steps(step(number, "self.play", sequences=2.0) for number in range(5, 9))
    assert len(made._steps) <= 4 and rows(made)["one/tic"]["trained"] == 6
    made.clear("metrics")
    assert rows(made)["one/tic"]["trained"] == 0


def test_a_weight_is_that_of_the_last_step(tmp_path: Path):
    config = mixed(tictactoe(tmp_path), LABELS)
    sections = [
        config.environments[0].model_copy(update={"weight": [[0, 3.0], [10, 1.0]]}),
        config.environments[1],
    ]
    made = MixtureTable(config.model_copy(update={"environments": sections}))
    assert rows(made)["one/tic"]["weight"] == 0.6  # of 3 and 2
    made.add_steps([step(6, "one/tic", sequences=1.0)])  # the sixth step, counted from 0
    assert rows(made)["one/tic"]["weight"] == 0.5
    made.add_steps([step(40, "one/tic", sequences=1.0)])
    assert round(rows(made)["one/tic"]["weight"], 3) == 0.333


def test_endings_of_all_lines_are_added(tmp_path: Path):
    made = table(tmp_path)
    made.add_endings([{"time_s": 5.0, "ok": 3, "environments": {"one/tic": {"ok": 2, "timeout": 1}}}])
    made.add_endings(
        [{"time_s": 9.0, "ok": 1, "environments": {"one/tic": {"ok": 1}}}, {"time_s": 12.0, "ok": 1}]
    )
    assert (
        rows(made)["one/tic"]["endings"] == {"ok": 3, "timeout": 1}
        and rows(made)["self.play"]["endings"] == {}
    )
    made.clear("endings")
    assert rows(made)["one/tic"]["endings"] == {}
