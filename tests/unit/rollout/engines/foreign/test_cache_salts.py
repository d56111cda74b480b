"""Salts of prefixes: which sessions may share what was computed before a change of the weights."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.rollout.engines.foreign.cache_salts import CacheSaltTable


def test_a_sessions_salt_is_of_the_commit_that_it_began_after():
    table = CacheSaltTable()
    first = table.take("old")
    table.end("old")
    table.commit()
    assert table.take("old") == first != table.take("new") == table.take("")
    table.release("old")
    assert table.take("old") == table.take("new")


def test_nothing_is_shared_with_what_was_forgotten():
    table = CacheSaltTable()
    before = {name: table.take(name) for name in ("idle", "running")}
    table.end("idle")
    assert table.idle == 1
    table.commit()
    table.forget()
    assert table.idle == 0
    assert all(table.take(name) != salt for name, salt in before.items())


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "end", "release", "commit", "forget"]))
    )
)
def test_idle_sessions_are_those_that_began_and_run_nothing(events: list[tuple[str, str]]):
    table, running, began = CacheSaltTable(), dict.fromkeys("abc", 0), set()
    for session, event in events:
        if event == "take":
            table.take(session)
            running[session] += 1
            began.add(session)
        elif event == "end" and running[session]:
            table.end(session)
            running[session] -= 1
        elif event == "release":
            table.release(session)
            began.discard(session)
        elif event == "commit":
            table.commit()
        elif event == "forget":
            table.forget()
            began = {name for name, count in running.items() if count}
        assert table.idle == sum(not running[name] for name in began)
