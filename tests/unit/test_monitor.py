from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.monitor import RELATIVE_ERROR, LengthMonitor, LengthSketch, Quantiles

lengths = st.lists(st.integers(1, 200_000), min_size=1, max_size=200)


def sketch_of(values: list[int]) -> LengthSketch:
    sketch = LengthSketch()
    for value in values:
        sketch.add(value)
    return sketch


@given(lengths, st.floats(0, 1))
def test_quantiles_are_within_the_relative_error(values: list[int], fraction: float) -> None:
    rank = max(0, math.ceil(fraction * len(values) - 1e-9) - 1)
    exact = sorted(values)[rank]
    assert abs(sketch_of(values).quantile(fraction) - exact) <= RELATIVE_ERROR * exact * 1.0001


@given(lengths, lengths)
def test_merging_is_seeing_both(left: list[int], right: list[int]) -> None:
    merged = sketch_of(left)
    merged.merge(sketch_of(right))
    both = sketch_of(left + right)
    assert merged.weight == both.weight
    assert all(merged.quantile(q) == both.quantile(q) for q in (0, 0.1, 0.5, 0.95, 1))
    assert math.isclose(merged.summary().mean, sum(left + right) / len(left + right))


def test_the_past_fades() -> None:
    monitor = LengthMonitor()
    for _ in range(100):
        monitor.observe(10, [5, 5])
    for _ in range(12):
        monitor.step()
        for _ in range(10):
            monitor.observe(1000, [500, 500])
    assert monitor.episodes.summary().p50 > 900
    assert monitor.turns.summary().mean > 400
    for _ in range(60):
        monitor.step()
    assert monitor.episodes.summary() == Quantiles()


def test_nothing_seen_is_all_zero_and_lengths_of_zero_count() -> None:
    assert LengthSketch().summary() == Quantiles()
    sketch = sketch_of([8])
    sketch.add(0)
    sketch.add(0)
    assert sketch.quantile(0.5) == 0 and sketch.quantile(1.0) > 7.9
