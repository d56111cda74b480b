"""`earl bench publish`: the interval of a median."""

from __future__ import annotations

import pytest

from benchmarks.publish.memory import median_interval


@pytest.mark.parametrize(
    ("count", "ends"), [(1, (0, 0)), (5, (0, 4)), (6, (0, 5)), (11, (1, 9)), (21, (5, 15))]
)
def test_the_interval_of_a_median_is_that_of_order_statistics(count: int, ends: tuple[int, int]):
    values = [float(value) for value in reversed(range(count))]
    assert median_interval(values) == ends
