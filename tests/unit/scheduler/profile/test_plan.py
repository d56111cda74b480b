"""Checks which point of a profile comes next, within a bounded time, and what the points amount to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from earl.parallelism import Parallelism
from services.scheduler.profile.plan import LEAST, MOST, ProfilePoint, ProfileProgress, halves

GRID = [ProfilePoint(length, count) for length in (100, 200, 400) for count in (1, 4, 16)]


def progress(points=GRID) -> ProfileProgress:
    return ProfileProgress(Parallelism(dp=2), points)


def measured(
    points, seconds: float, cost, *, over: ProfileProgress | None = None
) -> tuple[ProfileProgress, list[ProfilePoint]]:
    """Visits until there is no time or nothing to do. cost: seconds of a visit to a point."""
    profiled, visits = over or progress(points), []
    while (point := profiled.next(seconds)) is not None:
        seconds -= cost(point)
        visits.append(point)
        profiled.note(point, 1000.0 / point.work, cost(point), 0.1)
    return profiled, visits


def test_with_time_for_all_every_point_gets_most_windows_in_turns():
    profiled, visits = measured(GRID, 1e9, lambda point: 1.0)
    assert len(visits) == MOST * len(GRID)
    assert (
        sorted(visits[: len(GRID)]) == sorted(GRID)
        and visits[: len(GRID)] == visits[len(GRID) : 2 * len(GRID)]
    )
    works = [point.work for point in visits[: len(GRID)]]
    assert works == sorted(works)
    assert not profiled.lacking()
    assert [(row.context_tokens, row.concurrency) for row in profiled.rows("rollout")] == sorted(GRID)


def test_with_little_time_cheap_points_are_complete_and_the_rest_is_said_to_lack():
    profiled, visits = measured(GRID, 150.0, lambda point: point.work / 100)
    rows = profiled.rows("rollout")
    assert rows and len(rows) + len(profiled.lacking()) == len(GRID)
    dearest = max(row.context_tokens * row.concurrency for row in rows)
    assert all(point.work >= dearest for point in profiled.lacking())
    # Little was spent on what did not become a row: a look, or what was then too dear to repeat.
    assert sum(point.work for point in visits if point in profiled.lacking()) <= 0.5 * 150.0 * 100
    assert sum(point.work for point in visits) / 100 <= 150.0


@given(
    seconds=st.floats(0.0, 500.0),
    slope=st.floats(0.001, 0.1),
    fixed=st.floats(0.01, 3.0),
    bursts=st.sets(st.sampled_from(GRID), max_size=3),
)
def test_the_time_is_overrun_by_less_than_the_dearest_visit(seconds, slope, fixed, bursts):
    profiled, left, dearest = progress(), seconds, 0.0
    for point in bursts:
        profiled.note_oom(point)
    while (point := profiled.next(left)) is not None:
        assert not any(one.within(point) for one in bursts)
        left -= fixed + slope * point.work
        dearest = max(dearest, fixed + slope * point.work)
        profiled.note(point, 1.0, fixed + slope * point.work, None)
    assert left >= -dearest


def test_what_does_not_fit_is_not_tried_longer_and_more_concurrent():
    profiled = progress()
    profiled.note_oom(ProfilePoint(200, 16))
    assert ProfilePoint(400, 16) not in profiled.lacking() and ProfilePoint(400, 4) in profiled.lacking()
    profiled.note_oom(ProfilePoint(400, 16))  # known already
    assert [(row.context_tokens, row.concurrency) for row in profiled.rows("trainer")] == [(200, 16)]
    profiled.note_oom(ProfilePoint(100, 4))  # covers the earlier one
    rows = profiled.rows("trainer")
    assert [(row.context_tokens, row.concurrency, row.oom) for row in rows] == [(100, 4, True)]
    assert profiled.lacking() == [ProfilePoint(100, 1), ProfilePoint(200, 1), ProfilePoint(400, 1)]


def test_what_was_measured_before_is_not_measured_again():
    before, _ = measured(GRID[:4], 1e9, lambda point: 1.0)
    for point in GRID[:4]:
        assert before.windows(point) == MOST
    _, visits = measured(GRID[:4], 1e9, lambda point: 1.0, over=before)
    assert visits == []


def test_a_row_is_the_median_of_its_windows_and_the_highest_memory():
    profiled = progress([ProfilePoint(8, 1)])
    for rate, fraction in ((10.0, 0.2), (500.0, 0.3), (12.0, None)):
        assert not profiled.rows("rollout")
        profiled.note(ProfilePoint(8, 1), rate, 1.0, fraction)
    (row,) = profiled.rows("rollout")
    assert (row.tokens_per_device_s, row.peak_memory_fraction, row.parallelism) == (12.0, 0.3, Parallelism(2))
    assert LEAST == 3


def test_what_runs_out_of_memory_in_the_end_has_no_throughput():
    profiled = progress([ProfilePoint(8, 1)])
    for _ in range(LEAST):
        profiled.note(ProfilePoint(8, 1), 10.0, 1.0, 0.9)
    profiled.note_oom(ProfilePoint(8, 1))
    assert [(row.oom, row.tokens_per_device_s) for row in profiled.rows("rollout")] == [(True, None)]


def test_only_the_points_that_a_probe_serves_are_chosen():
    assert progress().next(10.0, [ProfilePoint(400, 4)]) == ProfilePoint(400, 4)
    assert progress().next(10.0, []) is None


def test_halves_divide_by_cost():
    cheap, dear = halves(GRID[::-1])
    assert sorted(cheap + dear) == sorted(GRID)
    assert max(point.work for point in cheap) <= min(point.work for point in dear)
