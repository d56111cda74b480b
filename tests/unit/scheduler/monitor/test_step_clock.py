"""The time that the present part of a step has taken, and will still take; times are numbers."""

from __future__ import annotations

from services.scheduler.monitor.step_clock import Doing, StepClock, StepWork

PLAYING, TRAINING = StepWork(Doing.PLAYING, 1, 64), StepWork(Doing.TRAINING, 1, 64)


def test_in_the_first_step_the_speed_since_the_first_look_counts():
    clock = StepClock()
    clock.observe(PLAYING, 10.0)
    clock.observe(PLAYING, 11.0)
    assert clock.left_s(0.0, 12.0) is None and clock.spent_s(12.0) == 2.0
    assert clock.left_s(0.25, 32.0) == 60.0
    assert clock.left_s(1.0, 90.0) is None


def test_what_was_done_before_the_first_look_is_no_speed():
    clock = StepClock()
    clock.observe(PLAYING, 0.0)
    assert clock.left_s(0.5, 1.0) is None  # played while the batch before was trained
    assert clock.left_s(0.75, 11.0) == 10.0


def test_from_the_second_step_on_the_same_part_of_the_one_before_counts():
    clock = StepClock()
    for version, began_s in ((1, 0.0), (2, 100.0)):
        clock.observe(PLAYING._replace(version=version), began_s)
        clock.observe(TRAINING._replace(version=version), began_s + 30.0)
    assert clock.left_s(0.0, 140.0) == 60.0
    clock.observe(PLAYING._replace(version=3), 180.0)
    assert clock.left_s(0.0, 185.0) == 25.0
    # It takes longer than last time.
    assert clock.left_s(0.5, 211.0) == 26.0


def test_a_part_of_another_size_is_measured_by_its_episodes():
    clock = StepClock()
    clock.observe(StepWork(Doing.EVALUATING, 1, 512), 0.0)
    clock.observe(None, 100.0)
    clock.observe(StepWork(Doing.EVALUATING, 9, 64), 200.0)
    assert clock.left_s(0.0, 201.0) == 64 * 100 / 512 - 1
    clock.observe(None, 210.0)
    assert clock.left_s(0.0, 211.0) is None
