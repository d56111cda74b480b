"""Checks how long a trainer waits until a lost worker is known as lost."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from earl.errors import TrainerError
from services.trainer.retry_budget import LEAST_PLANS, LOSSES, RetryBudget
from services.trainer.trainer import PAUSE_S, TrainerRank


def given_up_after(lost_after_s: float) -> float:
    budget, now_s = RetryBudget(), 100.0
    while True:
        budget.failed(now_s)
        if budget.has_ended(now_s, lost_after_s):
            return now_s - 100.0
        now_s += PAUSE_S


@pytest.mark.parametrize("lost_after_s", [10.0, 60.0, 600.0])
def test_it_outlasts_the_time_in_which_a_worker_is_lost(lost_after_s: float) -> None:
    least_s = LOSSES * lost_after_s
    assert least_s < given_up_after(lost_after_s) <= max(least_s, 40.0) + PAUSE_S


def test_it_is_not_over_for_a_few_plans_that_took_long_to_read() -> None:
    budget = RetryBudget()
    for plan in range(LEAST_PLANS - 1):
        budget.failed(1000.0 * plan)
    assert not budget.has_ended(1e9, 10.0)
    budget.failed(1e9)
    assert budget.has_ended(1e9, 10.0)


def test_a_plan_that_was_trained_begins_it_anew() -> None:
    budget = RetryBudget()
    for _ in range(LEAST_PLANS):
        budget.failed(0.0)
    budget.trained()
    budget.failed(1000.0)
    assert not budget.has_ended(1000.0, 10.0) and budget.plans == 1


def gives_up(lost_after_s: float | None, others: bool) -> bool:
    """Returns whether a rank raises on its next plan that cannot be trained. lost_after_s: None on
    other ranks than rank 0. others: how the other ranks vote."""
    rank = SimpleNamespace(
        _budget=RetryBudget(LEAST_PLANS - 1, time.monotonic() - 1.0),
        _rank0=None
        if lost_after_s is None
        else SimpleNamespace(stage=SimpleNamespace(scheduler=SimpleNamespace(lost_after_s=lost_after_s))),
        _group=SimpleNamespace(agree=lambda vote: vote and others),
        _requests=SimpleNamespace(stop=threading.Event()),
    )
    rank._requests.stop.set()  # no pause
    try:
        TrainerRank._abandon(rank, SimpleNamespace(batch_id=7))  # type: ignore[arg-type]
    except TrainerError as error:
        assert f"{LEAST_PLANS} plans in a row could not be trained, the last one batch 7" in str(error)
        return True
    return False


def test_all_ranks_give_up_with_the_first_one_that_knows_what_the_scheduler_said() -> None:
    patient, at_its_end = 60.0, 0.1
    assert gives_up(at_its_end, others=True) and gives_up(None, others=True)
    assert not gives_up(patient, others=True) and not gives_up(None, others=False)
