"""RangeSet against Python's set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from earl.ticket_ranges import RangeSet

ids = st.frozensets(st.integers(0, 40))


@given(ids, ids)
def test_algebra_is_that_of_sets(left: frozenset[int], right: frozenset[int]) -> None:
    a, b = RangeSet.of(left), RangeSet.of(right)
    for found, wanted in ((a | b, left | right), (a - b, left - right), (a & b, left & right)):
        assert set(found) == wanted and len(found) == len(wanted)
        assert found == RangeSet.of(wanted)
        assert all(start < stop for start, stop in found.ranges)
        assert all(one[1] < two[0] for one, two in zip(found.ranges, found.ranges[1:], strict=False))
    assert all((number in a) == (number in left) for number in range(42))
    assert a.stop == max(left, default=-1) + 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30))))
def test_ranges_in_any_order_are_joined(ranges: list[tuple[int, int]]) -> None:
    wanted = {number for start, stop in ranges for number in range(start, stop)}
    assert set(RangeSet(ranges)) == wanted
    assert RangeSet(RangeSet(ranges).ranges) == RangeSet(ranges)
