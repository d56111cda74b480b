"""For how long a trainer waits for a lost worker to be known as lost."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from earl.errors import TrainerError
from services.trainer.retry_budget import LEAST_PLANS, SILENCES, RetryBudget
from services.trainer.trainer import PAUSE_S, TrainerRank


def given_up_after(lost_after_s: float) -> float:
    patience, now_s = RetryBudget(), 100.0
    while True:
        patience.failed(now_s)
        if patience.has_ended(now_s, lost_after_s):
            return now_s - 100.0
        now_s += PAUSE_S


@pytest.mark.parametrize("lost_after_s", [10.0, 60.0, 600.0])
def test_it_outlasts_the_silence_that_a_member_is_allowed(lost_after_s: float) -> None:
    least_s = SILENCES * lost_after_s
    assert least_s < given_up_after(lost_after_s) <= max(least_s, 40.0) + PAUSE_S


def test_it_is_not_over_for_a_few_plans_that_took_long_to_read() -> None:
    patience = RetryBudget()
    for plan in range(LEAST_PLANS - 1):
        patience.failed(1000.0 * plan)
    assert not patience.has_ended(1e9, 10.0)
    patience.failed(1e9)
    assert patience.has_ended(1e9, 10.0)


def test_a_plan_that_was_trained_begins_it_anew() -> None:
    patience = RetryBudget()
    for _ in range(LEAST_PLANS):
        patience.failed(0.0)
    patience.trained()
    patience.failed(1000.0)
    assert not patience.has_ended(1000.0, 10.0) and patience.plans == 1


def gives_up(lost_after_s: float | None, others: bool) -> bool:
    """Whether a rank raises on its next plan that cannot be trained. lost_after_s: None on
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
