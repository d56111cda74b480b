"""The work to expect when devices have moved: a drift is extrapolated, noise is averaged."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.selector.work_trend import AHEAD, FEWEST, MEAN, MOST, STEPS, expected


@given(st.floats(0.8, 1.25), st.floats(1e-3, 1e3), st.integers(0, 10_000))
def test_a_drift_is_extrapolated_to_the_step_that_devices_have_moved_for(
    factor: float, first: float, begin: int
):
    if abs(math.log(factor)) < 1e-6:
        factor = 1.0
    points = [(begin + number, first * factor**number) for number in range(STEPS)]
    assert expected(points) == pytest.approx(first * factor ** (STEPS - 1 + AHEAD), rel=1e-6)


def test_steps_that_were_left_out_do_not_make_a_drift_steeper():
    points = [(number, 1.3**number) for number in (0, 1, 4, 5, 6, 9)]
    assert expected(points) == pytest.approx(1.3 ** (9 + AHEAD))


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_no_more_than_a_doubling_is_expected(factor: float):
    points = [(number, factor**number) for number in range(STEPS)]
    change = MOST if factor > 1 else 1 / MOST
    assert expected(points) == pytest.approx(points[-1][1] * change)


def test_few_steps_or_noise_are_averaged():
    few = [(number, 2.0**number) for number in range(FEWEST - 1)]
    assert expected(few) == pytest.approx(math.exp(fmean(math.log(work) for _, work in few[-MEAN:])))
    assert expected([(7, 3.0)]) == pytest.approx(3.0)
    draw, averaged = random.Random(2), 0
    for _ in range(200):
        points = [(number, math.exp(draw.gauss(0, 0.2))) for number in range(STEPS)]
        averaged += expected(points) == pytest.approx(
            math.exp(fmean(math.log(work) for _, work in points[-MEAN:]))
        )
    # Of noise alone, Student's t with 6 degrees of freedom exceeds 3 in 2.4 % of series.
    assert averaged >= 185
