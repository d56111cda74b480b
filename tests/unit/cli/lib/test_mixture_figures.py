"""The figures of environments and of seats: how they are read, and where status and top show them."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from earl.cli.lib.mixture_figures import by_environment, by_seat
from earl.cli.show.panels import mixture, seat_lines
from earl.cli.show.status import rendered
from earl.stack.status import RunStatus
from tests.support.snapshots import SNAPSHOT

METRICS = {
    "sequences": 24.0,
    "win_rate": 0.5,
    "loss_rate": 0.25,
    "staleness_mean": 0.75,
    "staleness_max": 1.0,
    "environments.as.x/v1.sequences": 8.0,
    "environments.as.x/v1.reward_mean": 0.5,
    "environments.as.x/v1.win_rate": 0.75,
    "environments.as.x/v1.length_mean": 41.0,
    "environments.as.x/v1.truncated_episodes": 2.0,
    "environments.as.x/v1.staleness_mean": 1.25,
    "environments.as.x/v1.staleness_max": 2.0,
    "environments.self.sequences": 16.0,
    "environments.self.reward_mean": 0.0,
    "environments.self.seats.1.reward_mean": -0.25,
    "environments.self.seats.1.win_rate": 0.375,
    "environments.self.seats.0.reward_mean": 0.25,
    "environments.self.seats.0.win_rate": 0.625,
    "seats.0.reward_mean": 0.3,
    "seats.1.reward_mean": -0.25,
}


def test_figures_of_seats_are_no_environments():
    assert by_environment(METRICS).keys() == {"as.x/v1", "self"}
    assert by_environment(METRICS)["self"] == {"sequences": 16.0, "reward_mean": 0.0}
    assert by_environment({"seats.0.reward_mean": 1.0, "reward_mean": 0.5}) == {}


def test_seats_are_those_of_each_environment():
    assert by_seat(METRICS) == {
        "self": {0: {"reward_mean": 0.25, "win_rate": 0.625}, 1: {"reward_mean": -0.25, "win_rate": 0.375}}
    }
    alone = {"seats.1.turns_mean": 3.5, "seats.0.turns_mean": 4.0}
    assert by_seat(alone) == {"": {0: {"turns_mean": 4.0}, 1: {"turns_mean": 3.5}}}
    assert list(by_seat(alone)[""]) == [0, 1] and by_seat({"reward_mean": 1.0}) == {}


def test_the_table_of_a_mixture_has_staleness_and_truncation():
    table = mixture(RunStatus(metrics=METRICS))
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert cells["mixture"] == "as.x/v1" and cells["staleness"] == "1.25 (max 2)"
    assert cells["truncated"] == "25.0%" and cells["win rate"] == "75.0%"
    others = dict(zip(table.columns, table.rows[1], strict=True))
    assert len(table.rows) == 2 and others["staleness"] == others["win rate"] == "–"


def test_the_seats_of_self_play_take_one_line():
    line = "self-play of self: seat 0 wins 62.5% (reward +0.250), seat 1 wins 37.5% (reward -0.250)"
    status = replace(SNAPSHOT.status, metrics={**SNAPSHOT.status.metrics, **METRICS})
    assert list(seat_lines(status)) == [line]
    scores = {"seats.0.reward_mean": 2.0, "seats.1.reward_mean": 1.5}
    [text] = seat_lines(RunStatus(metrics=scores))
    assert text == "self-play: seat 0 scores +2.000, seat 1 scores +1.500"
    assert list(seat_lines(SNAPSHOT.status)) == []
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(rendered(replace(SNAPSHOT, status=status)))
    assert line in console.export_text()
