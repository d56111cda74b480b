"""For how long a trainer waits for a lost worker to be known as lost."""

from __future__ import annotations

import pytest

from services.trainer.patience import LEAST_PLANS, SILENCES, Patience

PAUSE_S = 2.0


def given_up_after(silence_s: float) -> float:
    patience, now_s = Patience(), 100.0
    while True:
        patience.failed(now_s)
        if patience.has_ended(now_s, silence_s):
            return now_s - 100.0
        now_s += PAUSE_S


@pytest.mark.parametrize("silence_s", [10.0, 60.0, 600.0])
def test_it_outlasts_the_silence_that_a_member_is_allowed(silence_s: float) -> None:
    assert SILENCES * silence_s < given_up_after(silence_s) <= max(SILENCES * silence_s, 40.0) + PAUSE_S


def test_it_is_not_over_for_a_few_plans_that_took_long_to_read() -> None:
    patience = Patience()
    for plan in range(LEAST_PLANS - 1):
        patience.failed(1000.0 * plan)
    assert not patience.has_ended(1e9, 10.0)
    patience.failed(1e9)
    assert patience.has_ended(1e9, 10.0)


def test_a_plan_that_was_trained_begins_it_anew() -> None:
    patience = Patience()
    for _ in range(LEAST_PLANS):
        patience.failed(0.0)
    patience.trained()
    patience.failed(1000.0)
    assert not patience.has_ended(1000.0, 10.0) and patience.plans == 1
