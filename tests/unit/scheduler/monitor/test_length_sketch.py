from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.monitor.length_sketch import (
    BINS_PER_OCTAVE,
    RELATIVE_ERROR,
    LengthHistogram,
    LengthSketch,
    Quantiles,
    histogram,
)

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


def test_nothing_seen_is_all_zero_and_lengths_of_zero_count() -> None:
    assert LengthSketch().summary() == Quantiles()
    sketch = sketch_of([8])
    sketch.add(0)
    sketch.add(0)
    assert sketch.quantile(0.5) == 0 and sketch.quantile(1.0) > 7.9


@given(lengths)
def test_a_histogram_has_every_length_in_its_bin(values: list[int]) -> None:
    found = histogram(values)
    assert sum(found.counts) == len(values) and found.counts[0] and found.counts[-1]
    for at, count in enumerate(found.counts):
        low, high = (2 ** ((found.first + at + end) / BINS_PER_OCTAVE) for end in (0, 1))
        assert count == sum(low * (1 - 1e-9) <= value < high * (1 - 1e-9) for value in values)


def test_powers_of_two_begin_a_bin_and_no_length_is_lost() -> None:
    assert histogram([1, 2, 4, 1024]).counts[:9] == (1, 0, 0, 0, 1, 0, 0, 0, 1)
    assert histogram([]) == LengthHistogram()
    assert histogram([0, 1]) == LengthHistogram(0, (2,))
