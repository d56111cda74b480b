"""Busy spans are gathered into a few and neither lose nor win time; rates survive a counter's restart."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from earl.worker_report import BusySpan
from services.rollout.episode.busy_spans import BusySpans, Rate, few

_INTERVALS = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 50)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=30,
)


@given(_INTERVALS, st.integers(1, 5))
def test_a_few_spans_are_as_long_as_all_of_them(intervals, most):
    spans = few(intervals, most)
    assert len(spans) <= most
    assert spans == sorted(spans)
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    busy = {moment for start, end in intervals for moment in range(start, end)}
    assert sum(end - start for start, end in spans) == len(busy)
    if intervals:
        assert spans[0][0] == min(s for s, _ in intervals) and spans[-1][1] <= max(e for _, e in intervals)


def test_no_more_than_may_leave_are_left_as_they_are():
    assert few([(5, 9), (0, 2), (1, 3)], 2) == [(0, 3), (5, 9)]


def test_the_smallest_gaps_are_taken_out():
    assert few([(0, 1), (2, 3), (10, 11), (12, 13)], 2) == [(0, 2), (10, 12)]


def test_a_worker_that_is_seldom_busy_does_not_look_busy_between_heartbeats_that_are_far_apart():
    spans = BusySpans(join_ns=10)
    for start in range(0, 10_000, 100):
        spans.enter("env", start)
        spans.leave("env", start + 5)
    assert sum(span.end_ns - span.start_ns for span in spans.take(10_000)) == 500


def test_overlapping_work_is_one_span_and_short_gaps_close():
    spans = BusySpans(join_ns=10)
    spans.enter("env", 0)
    spans.enter("env", 5)
    spans.leave("env", 20)
    spans.leave("env", 30)
    spans.enter("env", 35)
    spans.leave("env", 40)
    spans.enter("env", 60)
    assert spans.take(100) == [BusySpan("env", 0, 40), BusySpan("env", 60, 100)]
    spans.leave("env", 130)
    assert spans.take(200) == [BusySpan("env", 100, 130)]
    assert spans.take(300) == []


def test_rate():
    rate = Rate()
    assert rate(100, 1.0) == 0.0
    assert rate(150, 2.0) == 50.0
    assert rate(10, 3.0) == 0.0
    assert rate(30, 4.0) == 20.0
