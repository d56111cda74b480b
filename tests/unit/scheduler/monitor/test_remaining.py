"""Checks how long a phase will still take."""

from __future__ import annotations

import pytest

from services.scheduler.monitor.remaining import STEPS, Remaining


def test_steps_to_come_take_as_long_as_the_last_ones():
    remaining = Remaining()
    assert remaining.seconds("train", 0, 40, 5.0) is None
    remaining.observe("train", 1, 10.0)
    remaining.observe("train", 2, 12.0)
    remaining.observe("train", 3, 14.0)
    assert remaining.seconds("train", 3, 40, 14.0) == pytest.approx(37 * 2.0)
    assert remaining.seconds("train", 3, 40, 15.0) == pytest.approx(37 * 2.0 - 1.0)
    assert remaining.seconds("train", 3, 40, 500.0) == 0.0
    assert remaining.seconds("train", 40, 40, 15.0) is None


def test_only_the_last_steps_count():
    remaining = Remaining()
    for step in range(1, 100):
        remaining.observe("train", step, 1000.0 + step if step > 99 - STEPS - 1 else 10.0 * step)
    assert remaining.seconds("train", 99, 199, 1099.0) == pytest.approx(100.0)


def test_a_phase_begins_anew_and_so_does_a_run_that_is_rolled_back():
    remaining = Remaining()
    remaining.observe("warmup", 1, 10.0)
    remaining.observe("warmup", 2, 20.0)
    remaining.observe("train", 1, 30.0)
    assert remaining.seconds("train", 1, 11, 30.0) == pytest.approx(100.0)  # its first step took 10 s
    remaining.observe("train", 2, 32.0)
    assert remaining.seconds("train", 2, 12, 32.0) == pytest.approx(20.0)
    remaining.observe("train", 1, 40.0)
    remaining.observe("train", 2, 45.0)
    assert remaining.seconds("train", 2, 12, 45.0) == pytest.approx(50.0)


def test_an_evaluation_is_judged_by_its_episodes():
    remaining = Remaining()
    remaining.observe("train", 40, 100.0)
    assert remaining.seconds("evaluate:final", 0, 512, 104.0) is None
    assert remaining.seconds("evaluate:final", 128, 512, 110.0) == pytest.approx(30.0)
