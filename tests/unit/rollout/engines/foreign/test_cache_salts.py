"""Salts of prefixes: which sessions may share what was computed before a change of the weights."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.rollout.engines.foreign.cache_salts import CacheSaltTable


def test_a_sessions_salt_is_of_the_commit_that_it_began_after():
    salts = CacheSaltTable()
    first = salts.take("old")
    salts.end("old")
    salts.commit()
    assert salts.take("old") == first != salts.take("new") == salts.take("")
    salts.release("old")
    assert salts.take("old") == salts.take("new")


def test_nothing_is_shared_with_what_was_forgotten():
    salts = CacheSaltTable()
    before = {name: salts.take(name) for name in ("idle", "running")}
    salts.end("idle")
    assert salts.idle == 1
    salts.commit()
    salts.forget()
    assert salts.idle == 0
    assert all(salts.take(name) != salt for name, salt in before.items())


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "end", "release", "commit", "forget"]))
    )
)
def test_idle_sessions_are_those_that_began_and_run_nothing(events: list[tuple[str, str]]):
    salts, running, began = CacheSaltTable(), dict.fromkeys("abc", 0), set()
    for session, event in events:
        if event == "take":
            salts.take(session)
            running[session] += 1
            began.add(session)
        elif event == "end" and running[session]:
            salts.end(session)
            running[session] -= 1
        elif event == "release":
            salts.release(session)
            began.discard(session)
        elif event == "commit":
            salts.commit()
        elif event == "forget":
            salts.forget()
            began = {name for name, count in running.items() if count}
        assert salts.idle == sum(not running[name] for name in began)
