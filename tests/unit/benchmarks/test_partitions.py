"""The cases of `earl bench partitions`, and what its figures count."""

from __future__ import annotations

from typing import Any

from benchmarks.goals import missed_goals
from benchmarks.partitions import GOALS, PAIRS, PLACES, cases, summary


def case(seconds: float | None, **ended: int) -> dict[str, Any]:
    return {"case": "a-b/both/1", "to_progress_s": seconds, "ended": ended}


def run(lost: int | None, twice: int = 0, **ended: int) -> dict[str, Any]:
    return {"steps": 9, "trained_twice": twice, "lost": lost, "ended": ended}


def test_every_pair_is_broken_in_every_manner():
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names) == 11 * len(PAIRS)
    assert {place for pair in PAIRS for place in pair} == PLACES.keys()


def test_what_was_lost_ended_or_hung_is_counted_over_all_runs():
    figures = summary(
        [case(1.0), case(None), run(2, 1), case(3.0), case(None, trainer=-9), run(0, trainer=-9)]
    )
    assert figures == {
        "lost": 2, "trained_twice": 1, "hangs": 1, "crashes": 1,
        "to_progress_p50_s": 2.0, "to_progress_worst_s": 3.0,
    }  # fmt: skip


def test_tickets_that_could_not_be_counted_are_not_counted_as_none():
    for measured in ([case(1.0), run(0), run(None)], [case(1.0)]):
        figures = summary(measured)
        assert figures["lost"] is None
        assert "lost_max" in missed_goals({f"{name}_max": figures[name] for name in figures}, GOALS)
