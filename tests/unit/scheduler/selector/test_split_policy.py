"""The division of a pool of devices: what is quicker, and when a move pays."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.selector.split_policy import SplitPolicy, SplitWork, step_s

POOL = 8
SPLITS = [(rollout, POOL - rollout) for rollout in range(1, POOL)]


def work(share: float, total_s: float = 80.0) -> SplitWork:
    """A step whose rollout takes this part of its device-seconds."""
    return SplitWork(share * total_s, (1 - share) * total_s)


def test_the_slower_stage_decides():
    assert step_s(work(0.5), (4, 4)) == 10.0
    assert step_s(work(0.75), (4, 4)) == 15.0
    assert step_s(work(0.75), (6, 2)) == 10.0


def test_a_move_waits_until_staying_has_cost_as_much():
    policy = SplitPolicy(SPLITS)
    first = policy.decide(1, (4, 4), work(0.75), cost_s=8.0)
    assert (first.best, first.moves) == ((6, 2), False) and first.lost_s == pytest.approx(5.0)
    assert "a move must save 9.50 s" in first.sentence
    second = policy.decide(2, (4, 4), work(0.75), cost_s=8.0)
    assert second.moves and second.steps == 2 and second.lost_s == pytest.approx(10.0)
    assert second.sentence.startswith("goes to rollout 6, trainer 2: 10.00 s lost in 2 steps")
    policy.begin()
    third = policy.decide(4, (6, 2), work(0.75), cost_s=8.0)
    assert third.best == (6, 2) and not third.moves and "stays with" in third.sentence


def test_what_is_as_quick_moves_nothing():
    verdict = SplitPolicy(SPLITS).decide(1, (4, 4), SplitWork(40.0, 1e-9), cost_s=0.0)
    assert verdict.best == (7, 1)
    alike = SplitPolicy([(3, 5), (5, 3)]).decide(1, (4, 4), SplitWork(40.0, 40.0), cost_s=0.0)
    assert alike.best == (4, 4)


@given(st.floats(0.05, 0.95), st.sampled_from(SPLITS), st.floats(0.0, 100.0))
def test_the_best_is_the_quickest_and_a_move_always_pays(share: float, here: tuple[int, int], cost_s: float):
    policy = SplitPolicy(SPLITS)
    quickest = min(step_s(work(share), split) for split in SPLITS)
    lost = 0.0
    for number in range(20):
        verdict = policy.decide(number, here, work(share), cost_s)
        assert math.isclose(verdict.candidates[verdict.best], quickest)
        lost += verdict.candidates[here] - quickest
        if verdict.moves:
            assert lost > cost_s and verdict.best != here
            break
    else:
        assert lost <= cost_s + 20 * verdict.candidates[here]


def test_a_drift_is_followed_and_costs_less_than_standing_still():
    here, moves, spent_s = (1, 7), 0, 0.0
    policy = SplitPolicy(SPLITS)
    shares = [1 / 8 + step / 60 * 6 / 8 for step in range(61)]
    pending = None
    for number, share in enumerate(shares):
        spent_s += step_s(work(share), here)
        if pending is not None:
            # Devices move in this step, which is no measure.
            here, moves, spent_s, pending = pending, moves + 1, spent_s + 1.0, None
            policy.begin()
            continue
        verdict = policy.decide(number, here, work(share), cost_s=1.0)
        pending = verdict.best if verdict.moves else None
    best_static = min(sum(step_s(work(share), split) for share in shares) for split in SPLITS)
    assert here == (7, 1) and 3 <= moves <= 12
    assert best_static / spent_s > 1.2


def test_noise_is_no_drift():
    draw = random.Random(4)
    policy, verdicts = SplitPolicy(SPLITS), []
    for number in range(60):
        noisy = SplitWork(*(40.0 * draw.gauss(1, 0.1) for _ in range(2)))
        verdicts.append(policy.decide(number, (4, 4), noisy, cost_s=10.0))
    assert not any(verdict.moves for verdict in verdicts)
