"""The division of a pool of devices: what is quicker, and when a move pays."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.selector.split_policy import (
    Split,
    SplitPolicy,
    SplitWork,
    devices_moved,
    first_moves,
    moves_between,
    step_s,
)

POOL = 8
SPLITS = [(rollout, POOL - rollout) for rollout in range(1, POOL)]
# With a reference stage.
THREE = [
    (rollout, trainer, POOL - rollout - trainer)
    for rollout in range(1, POOL - 1)
    for trainer in range(1, POOL - rollout)
]


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


def test_of_three_stages_the_slowest_decides():
    assert step_s(SplitWork(40.0, 20.0, 10.0), (4, 2, 2)) == 10.0
    assert step_s(SplitWork(40.0, 20.0, 30.0), (4, 2, 2)) == 15.0
    policy = SplitPolicy(THREE)
    verdict = policy.decide(1, (4, 3, 1), SplitWork(9.0, 6.0, 12.0), cost_s=1.0)
    assert verdict.best == (3, 2, 3) and verdict.candidates[verdict.best] == pytest.approx(4.0)
    # Two stages give to one; two devices of rollout gain more at once than one of it, or of the trainer.
    assert verdict.moves and verdict.after == (2, 3, 3)
    assert verdict.sentence.startswith("goes to rollout 3, trainer 2, reference 3, first to rollout 2,")
    # Two moves must save what two moves cost.
    assert verdict.threshold_s == pytest.approx(2 * 1.0 + 0.1 * 12.0)


def test_the_move_that_gains_more_is_made_first():
    # Rollout gives to both others; the trainer is the slower one of them.
    verdict = SplitPolicy(THREE).decide(1, (6, 1, 1), SplitWork(12.0, 12.0, 10.0), cost_s=1.0)
    assert verdict.best == (3, 3, 2) and verdict.after == (4, 3, 1)
    gains = [verdict.candidates[split] for split in ((4, 3, 1), (5, 1, 2))]
    assert gains == pytest.approx([10.0, 12.0])


def test_among_divisions_that_are_alike_one_move_is_taken():
    verdict = SplitPolicy([(3, 3, 2), (2, 4, 2), (2, 3, 3), (4, 2, 2)]).decide(
        1, (4, 2, 2), SplitWork(2.0, 12.0, 8.0), cost_s=0.0
    )
    assert verdict.best == verdict.after == (3, 3, 2), "not (2, 3, 3) or (2, 4, 2), which are as quick"


def test_idle_devices_are_taken_like_those_of_a_giver():
    assert moves_between((4, 2), (3, 5)) == moves_between((4, 2, 1), (4, 2, 2)) == 1
    assert moves_between((4, 2, 1), (4, 2, 1)) == 0 and moves_between((4, 2), (5, 3)) == 2
    assert first_moves((4, 2), (5, 3), [(4, 4), (5, 3), (6, 2)]) == [(4, 4), (6, 2)]


def test_a_way_has_whole_replicas():
    # Rollout's come in pairs: it cannot give one device to each of the others, but two to one of them.
    splits = [split for split in THREE if split[0] % 2 == 0]
    verdict = SplitPolicy(splits).decide(1, (6, 1, 1), SplitWork(16.0, 8.0, 7.0), cost_s=0.1)
    assert verdict.best == (4, 2, 2) and verdict.after == (4, 3, 1)
    second = SplitPolicy(splits).decide(2, (4, 3, 1), SplitWork(16.0, 8.0, 7.0), cost_s=0.1)
    assert second.best == second.after == (4, 2, 2)
    # Where no two moves lead to the best, the best of what they lead to counts.
    alone = SplitPolicy([(4, 2, 2)]).decide(1, (6, 1, 1), SplitWork(16.0, 8.0, 7.0), cost_s=0.1)
    assert alone.best == (6, 1, 1) and not alone.moves


@given(st.sampled_from(THREE), st.tuples(*[st.floats(1.0, 100.0)] * 3))
def test_moves_one_after_the_other_lead_to_the_best_and_never_through_a_slower_one(
    here: Split, device_s: tuple[float, float, float]
):
    work, passed, moves = SplitWork(*device_s), [here], 0
    while True:
        verdict = SplitPolicy(THREE).decide(1, passed[-1], work, cost_s=0.0)
        if verdict.best == passed[-1]:
            break
        changes = [after - before for before, after in zip(passed[-1], verdict.after, strict=True)]
        assert sum(verdict.after) == POOL and min(verdict.after) > 0
        assert len([change for change in changes if change > 0]) == 1, "one stage takes"
        assert len([change for change in changes if change < 0]) == 1, "one stage gives"
        assert step_s(work, verdict.after) <= step_s(work, passed[-1]) * (1 + 1e-9)
        assert devices_moved(passed[-1], verdict.after) > 0
        passed.append(verdict.after)
        moves += 1
        assert moves <= 2
    assert math.isclose(step_s(work, passed[-1]), min(step_s(work, split) for split in THREE))
