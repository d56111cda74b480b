"""`earl status`, `earl ls` and the live view at 60, 80, 120 and 200 columns: columns go, words stay whole."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from earl.cli.run.launch import hint
from earl.cli.run.live_view import LiveView
from earl.cli.show.ls import ListedRun, table_of
from earl.cli.show.panels import MOST_IDLE, environments
from earl.cli.show.status import rendered
from earl.stack.status import ConfidenceBounds, EvaluationStatus, Gain
from tests.support.runs import tictactoe
from tests.support.snapshots import SNAPSHOT, STATUS

WORDS = (
    "rollout-0",
    "pending",
    "playing",
    "evaluated",
    "dropped",
    "open_spiel/tic_tac_toe",
    "staleness",
    "+0.250",
)


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_no_word_is_broken_or_shortened(columns: int):
    console = Console(file=io.StringIO(), width=columns, record=True)
    console.print(rendered(SNAPSHOT))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text
    for word in WORDS:
        assert word in text, word


def evaluation(name: str, version: int) -> EvaluationStatus:
    bounds = ConfidenceBounds(-0.31, 0.42)
    return EvaluationStatus(
        name, version, 512, 512, 0.8, 0.6, {"illegal": 0.02}, 0, bounds, bounds, Gain(0.21, bounds, 512)
    )


# The first screen answers: is it learning, how fast, how long still, is anything wrong.
ANSWERS = ("+0.250", "4,310", "30/140", "about 1:02:03 left", "group_incomplete 2")


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_the_live_view_answers_at_every_width(columns: int, tmp_path: Path):
    console = Console(file=io.StringIO(), width=columns, height=100, record=True)
    view = LiveView(console, hint(tictactoe(tmp_path)))
    metrics = {**STATUS.metrics, "phase_left_s": 3723.0, "win_rate": 0.75, "grad_norm": 1.0}
    metrics |= {"step_spent_s": 12.0, "step_episodes": 64.0, "step_played": 60.0, "step_left_s": 25.0}
    evaluations = (evaluation("start", 0), evaluation("final", 31))
    view.update(SNAPSHOT.processes, replace(STATUS, metrics=metrics, evaluations=evaluations))
    console.print(view._render())
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text
    for word in (
        *ANSWERS,
        "rollout-0",
        "gradient norm",
        "evaluated",
        "evaluation",
        "+0.21",
        "start",
        "final",
    ):
        assert word in text, word
    # What decides comes first: a terminal of 24 lines shows no more.
    first = "\n".join(text.splitlines()[:24])
    assert "Ctrl-C saves and stops" in first and "earl dashboard" in first
    assert all(word in first for word in ANSWERS[:4])


STEP = {"step_spent_s": 12.0, "step_episodes": 64.0, "step_played": 60.0, "step_left_s": 25.0}
# As in a run of a game: every figure that has a column.
FIGURES = {
    "win_rate": 0.75,
    "loss_rate": 0.2,
    "loss": 0.01,
    "entropy": 0.42,
    "logprob_mismatch": 0.003,
    "phase_left_s": 3723.0,
}


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_the_first_screen_of_status_answers_at_every_width(columns: int):
    metrics = {**STATUS.metrics, **FIGURES, **STEP}
    ledger = replace(STATUS.ledger, planned=0)
    snapshot = replace(
        SNAPSHOT,
        status=replace(STATUS, metrics=metrics, ledger=ledger),
        silent={"gateway": "no answer within 2 s"},
    )
    console = Console(file=io.StringIO(), width=columns, record=True)
    console.print(rendered(snapshot))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= columns and "…" not in "".join(lines)
    first = " ".join(" ".join(lines[:24]).split())
    # Is it learning, how fast, how long still, is anything wrong.
    for answer in (
        "reward",
        "+0.250",
        "75.0%",
        "4,310",
        "30/140, about 1:02:03 left",
        "step 31: 60 of 64 episodes played, 0:12 so far, about 0:25 left",
        "gateway does not answer: no answer within 2 s",
    ):
        assert answer in first, answer


def test_a_stage_and_a_worker_have_a_parallelism_as_on_the_page():
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(rendered(SNAPSHOT))
    text = console.export_text()
    assert text.count("parallelism") == 2 and "layout" not in text


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_listed_runs_lose_columns_and_keep_their_words(columns: int):
    run = ListedRun(
        "tictactoe", "d", "running", "train", 962, 100_000, 0.9, 0.95, 1.0, 3600.0, has_winners=True
    )
    failed = ListedRun("other", "d", "unknown", fault="runs/other is broken")
    table = table_of([run, failed], 3601.0).fitted(columns)
    assert table.columns[:4] == ("run", "state", "progress", "reward") or columns == 60
    assert {"run", "state", "reward"} <= set(table.columns)
    assert ("took" in table.columns) == (columns > 80)


def test_a_wide_screen_shows_more_than_a_narrow_one():
    shown = {}
    for columns in (60, 200):
        console = Console(file=io.StringIO(), width=columns, record=True)
        console.print(rendered(SNAPSHOT))
        shown[columns] = console.export_text()
    assert "reset p50" in shown[200] and "reset p50" not in shown[60]
    assert "shm 3.0 MiB" in shown[200] and "shm 3.0 MiB" not in shown[60]


def test_environments_without_a_session_are_a_count():
    (game, *_) = SNAPSHOT.environments
    idle = [replace(game, name=f"idle/{i}", open=0, queued=0, quarantined=0) for i in range(103)]
    rows = environments(replace(SNAPSHOT, environments=(*idle, game))).rows
    assert [row[0] for row in rows] == [game.name, "and 103 idle"]
    few = environments(replace(SNAPSHOT, environments=(*idle[:MOST_IDLE], game))).rows
    assert [row[0] for row in few] == [game.name, "idle/0", "idle/1", "idle/2"]
    assert environments(replace(SNAPSHOT, environments=tuple(idle))).rows[0][0] == "103 idle"
