"""The progress of a step, as the scheduler's status tells it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from services.scheduler.ledger import phases
from services.scheduler.monitor.step_clock import StepClock
from services.scheduler.monitor.workers import WorkerReport
from services.scheduler.state.rules import Rules
from services.scheduler.status import step_figures
from tests.support.ledger import RULES
from tests.unit.scheduler.ledger.test_ledger import TRAIN_ONLY, batch_of, begun, finish, lease


def loop_of(rules: Rules = TRAIN_ONLY, **changes: Any) -> Any:
    recorder = SimpleNamespace(fleet=SimpleNamespace(reports={}))
    return SimpleNamespace(ledger=begun(rules, **changes), step_clock=StepClock(), recorder=recorder)


def test_a_step_that_is_played_then_trained():
    loop = loop_of(staleness=0)
    assert step_figures(loop, 5.0) == {"step_spent_s": 0.0, "step_played": 0.0, "step_episodes": 4.0}
    tickets = lease(loop.ledger)
    finish(loop.ledger, tickets[:1])
    assert step_figures(loop, 15.0) == {
        "step_spent_s": 10.0, "step_played": 1.0, "step_episodes": 4.0, "step_left_s": 30.0,
    }  # fmt: skip
    finish(loop.ledger, tickets[1:])
    batch_of(loop.ledger)
    assert step_figures(loop, 45.0) == {"step_spent_s": 0.0, "step_played": 4.0, "step_episodes": 4.0}

    loop.recorder.fleet.reports["t"] = reported(0.5)
    assert step_figures(loop, 55.0)["step_trained"] == 0.5
    loop.recorder.fleet.reports["t"] = reported(0.75)
    assert step_figures(loop, 65.0)["step_left_s"] == pytest.approx(20.0 / 3)


def reported(train_fraction: float | None, *, age_s: float = 0.0, incarnation: int = 1) -> WorkerReport:
    return WorkerReport(incarnation, time.monotonic() - age_s, train_fraction=train_fraction)


def training() -> Any:
    """A loop whose trainer "t" has had a batch since second 45."""
    loop = loop_of(staleness=0)
    finish(loop.ledger, lease(loop.ledger))
    batch_of(loop.ledger)
    step_figures(loop, 45.0)
    return loop


@pytest.mark.parametrize(("said", "shown"), [(1.5, 1.0), (-0.5, 0.0)])
def test_a_fraction_that_a_trainer_reports_is_bounded(said: float, shown: float):
    loop = training()
    loop.recorder.fleet.reports["t"] = reported(said)
    figures = step_figures(loop, 65.0)
    assert figures["step_trained"] == shown and "step_left_s" not in figures


@pytest.mark.parametrize(
    ("fraction", "age_s", "incarnation"),
    [
        pytest.param(0.5, 3600.0, 1, id="of the batch before"),
        pytest.param(0.5, 0.0, 7, id="of another life"),
        pytest.param(None, 0.0, 1, id="without one"),
    ],
)
def test_a_report_that_is_not_of_this_batch_tells_no_fraction(
    fraction: float | None, age_s: float, incarnation: int
):
    loop = training()
    loop.recorder.fleet.reports["t"] = reported(fraction, age_s=age_s, incarnation=incarnation)
    assert "step_trained" not in step_figures(loop, 55.0)


def test_the_last_report_of_a_trainer_that_was_lost_tells_no_fraction():
    loop = training()
    loop.recorder.fleet.reports["t"] = reported(0.5)
    loop.ledger.membership.leave("t", "lost")
    assert "step_trained" not in step_figures(loop, 55.0)


@pytest.mark.parametrize(("staleness", "finished"), [(1, 8), (0, 3)])
def test_how_much_is_played_does_not_go_through_the_tickets_of_groups_that_are_whole_or_all_due(
    staleness: int, finished: int
):
    """Every status asks for it, on the scheduler's loop."""
    ledger = begun(staleness=staleness)
    finish(ledger, lease(ledger)[:finished])
    ledger.tables.tickets = {}
    assert phases.episodes_played(ledger) == min(4, finished)


def test_an_evaluation_has_no_episodes_of_a_step():
    loop = loop_of(RULES, warmup_batches=0)
    tickets = lease(loop.ledger)
    assert step_figures(loop, 1.0) == {"step_spent_s": 0.0}
    finish(loop.ledger, tickets[:1], descriptor_key="")
    figures = step_figures(loop, 11.0)
    assert figures == {"step_spent_s": 10.0, "step_left_s": pytest.approx(20.0)}


def test_nothing_is_told_once_all_is_done():
    loop = loop_of(steps=0)
    assert phases.phase(loop.ledger) == phases.DONE and step_figures(loop, 9.0) == {}
