"""The time that the present part of a step has taken, and will still take; times are numbers."""

from __future__ import annotations

import math

import pytest

from services.scheduler.monitor.step_clock import Doing, StepClock, StepWork
from services.scheduler.state.tickets import Purpose

EPISODES = 64


def playing(version: int, purpose: Purpose = Purpose.TRAIN) -> StepWork:
    return StepWork(Doing.PLAYING, version, EPISODES, purpose)


def training(version: int, purpose: Purpose = Purpose.TRAIN) -> StepWork:
    return StepWork(Doing.TRAINING, version, EPISODES, purpose)


def evaluating(version: int, episodes: int = EPISODES) -> StepWork:
    return StepWork(Doing.EVALUATING, version, episodes, Purpose.EVALUATE)


def observed(*works: tuple[StepWork | None, float]) -> StepClock:
    """A clock that saw these begin; the last one only just has, and is to be estimated."""
    clock = StepClock()
    for work, began_s in works:
        clock.observe(work, began_s)
    return clock


def test_in_the_first_step_the_speed_since_the_first_look_counts():
    clock = observed((playing(1), 10.0), (playing(1), 11.0))
    assert clock.left_s(0.0, 12.0) is None and clock.spent_s(12.0) == 2.0
    assert clock.left_s(0.25, 32.0) == 60.0
    assert clock.left_s(1.0, 90.0) is None


def test_what_was_done_before_the_first_look_is_no_speed():
    clock = observed((playing(1), 0.0))
    assert clock.left_s(0.5, 1.0) is None  # played while the batch before was trained
    assert clock.left_s(0.75, 11.0) == 10.0


def test_the_same_part_of_the_step_before_counts():
    clock = observed((playing(1), 0.0), (training(1), 30.0), (playing(2), 100.0), (training(2), 130.0))
    assert clock.left_s(0.0, 140.0) == 60.0
    clock.observe(playing(3), 180.0)
    assert clock.left_s(0.0, 185.0) == 25.0
    # It takes longer than last time.
    assert clock.left_s(0.5, 211.0) == 26.0


def test_a_part_of_another_size_is_measured_by_its_episodes():
    clock = observed((training(1), 0.0), (evaluating(2, 512), 9.0), (playing(2), 109.0), (training(2), 199.0))
    clock.observe(evaluating(3, 64), 200.0)
    assert clock.left_s(0.0, 201.0) == 64 * 100 / 512 - 1
    clock.observe(None, 210.0)
    assert clock.left_s(0.0, 211.0) is None


TELL_NOTHING = {
    "first, its start unseen": [(training(5), 0.0), (playing(6), 4.0), (training(6), 9.0)],
    "a batch taken apart": [
        (playing(1), 0.0), (training(1), 30.0), (playing(1), 32.0), (training(1), 40.0)
    ],
    "a batch rolled back": [
        (playing(5), 0.0), (training(5), 30.0), (playing(3), 32.0), (training(3), 40.0)
    ],
    "rolled back while it was played": [
        (training(1), 0.0), (playing(2), 9.0), (playing(1), 11.0), (training(1), 12.0), (playing(2), 13.0)
    ],
    "played again for a batch taken apart": [
        (playing(1), 0.0), (training(1), 30.0), (playing(1), 32.0), (training(1), 33.0), (playing(2), 50.0)
    ],
    "played during an evaluation": [
        (training(1), 0.0), (evaluating(2), 9.0), (playing(2), 19.0), (training(2), 19.5), (playing(3), 60.0)
    ],
    "an evaluation rolled back": [
        (training(1), 0.0), (evaluating(2), 9.0), (playing(1), 10.0), (training(1), 20.0),
        (evaluating(2), 30.0),
    ],
    "nobody knew meanwhile": [(training(1), 0.0), (playing(2), 9.0), (None, 19.0), (playing(2), 20.0)],
}  # fmt: skip


@pytest.mark.parametrize("works", TELL_NOTHING.values(), ids=TELL_NOTHING)
def test_work_that_tells_nothing_of_the_next_is_no_estimate(works: list[tuple[StepWork | None, float]]):
    assert observed(*works).left_s(0.0, works[-1][1] + 0.25) is None


@pytest.mark.parametrize("fraction", [math.nan, -1.0, 1.0, 7.0, math.inf, 5e-324])
def test_a_fraction_that_is_none_is_no_estimate(fraction: float):
    clock = observed((training(1), 0.0))
    assert clock.left_s(0.0, 1.0) is None and clock.left_s(fraction, 9.0) is None
    assert clock.left_s(0.5, 11.0) == 10.0


def test_a_part_that_is_begun_again_is_measured_from_then():
    clock = observed((training(1), 0.0))
    assert clock.left_s(0.75, 60.0) is None
    assert clock.left_s(0.0, 80.0) is None  # another trainer has the batch
    assert clock.left_s(0.5, 90.0) == 10.0


def test_after_work_that_ended_early_the_estimate_is_that_of_before():
    clock = observed((playing(1), 0.0), (training(1), 30.0), (playing(2), 100.0), (training(2), 130.0))
    clock.observe(playing(2), 132.0)  # the arena of an episode was lost
    clock.observe(training(2), 140.0)
    assert clock.left_s(0.0, 150.0) == 60.0


def test_imitation_tells_nothing_of_training():
    clock = observed(
        (playing(1, Purpose.WARMUP), 0.0), (training(1, Purpose.WARMUP), 30.0),
        (playing(2, Purpose.WARMUP), 31.0), (training(2, Purpose.WARMUP), 61.0),
        (playing(3), 62.0),
    )  # fmt: skip
    assert clock.left_s(0.0, 63.0) is None
    clock.observe(training(3), 92.0)
    assert clock.left_s(0.0, 93.0) is None
    clock.observe(playing(4), 152.0)
    assert clock.left_s(0.0, 162.0) == 20.0
