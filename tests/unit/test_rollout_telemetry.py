"""Busy spans coalesce to a few and never lose covered time; rates survive a counter's restart."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.rollout.telemetry import BusySpans, Rate, Span, union

_INTERVALS = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 50)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=30,
)


@given(_INTERVALS, st.integers(1, 5))
def test_union_covers_everything_with_a_few(intervals, most):
    spans = union(intervals, most)
    assert len(spans) <= most
    assert spans == sorted(spans)
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    assert all(any(s <= start and end <= e for s, e in spans) for start, end in intervals)
    if intervals:
        assert (spans[0][0], spans[-1][1]) == (min(s for s, _ in intervals), max(e for _, e in intervals))


def test_union_closes_the_smallest_gaps():
    assert union([(0, 1), (2, 3), (10, 11), (12, 13)], 2) == [(0, 3), (10, 13)]


def test_overlapping_work_is_one_span_and_short_gaps_close():
    spans = BusySpans(join_ns=10)
    spans.enter("env", 0)
    spans.enter("env", 5)
    spans.leave("env", 20)
    spans.leave("env", 30)
    spans.enter("env", 35)
    spans.leave("env", 40)
    spans.enter("env", 60)
    assert spans.take(100) == [Span("env", 0, 40), Span("env", 60, 100)]
    spans.leave("env", 130)
    assert spans.take(200) == [Span("env", 100, 130)]
    assert spans.take(300) == []


def test_rate():
    rate = Rate()
    assert rate(100, 1.0) == 0.0
    assert rate(150, 2.0) == 50.0
    assert rate(10, 3.0) == 0.0
    assert rate(30, 4.0) == 20.0
