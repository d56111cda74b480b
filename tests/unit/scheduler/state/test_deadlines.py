"""Deadlines against a dictionary that is looked through every time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.state.deadlines import DeadlineQueue

keys = st.integers(0, 5)
moves = st.one_of(
    st.tuples(st.just("set"), keys, st.integers(0, 20)),
    st.tuples(st.just("prolong"), keys, st.integers(0, 20)),
    st.tuples(st.just("drop"), keys, st.just(0)),
    st.tuples(st.just("due"), st.just(0), st.integers(0, 20)),
)


@given(st.lists(moves, max_size=40))
def test_what_is_due_is_taken_once(done: list[tuple[str, int, int]]) -> None:
    deadlines: DeadlineQueue[int] = DeadlineQueue()
    plain: dict[int, int] = {}
    for what, key, time in done:
        if what == "set":
            deadlines.set(key, time)
            plain[key] = time
        elif what == "prolong":
            deadlines.prolong(key, time)
            plain[key] = max(plain.get(key, time), time)
        elif what == "drop":
            deadlines.drop(key)
            plain.pop(key, None)
        else:
            due = [one for one, until in plain.items() if until <= time]
            assert deadlines.take_due(time) == due
            for one in due:
                del plain[one]
