"""What engines share: salts of prefixes, busy periods, which Python runs an engine."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.errors import ConfigError, EngineNotInstalled
from earl.worker_report import TransferTotals, totals_by_path
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.contract.stats import BusyClock
from services.rollout.engines.foreign.cache_salts import CacheSaltTable
from services.rollout.engines.process.interpreter import interpreter_of


def spec(**fields) -> EngineSpec:
    return EngineSpec(name="e", model_dir="m", **fields)


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


def test_transfers_of_ranks_add_up_by_path():
    parts = [
        TransferTotals(path="shm", size_bytes=3, seconds=0.5, transfers=1, retries=1),
        TransferTotals(path="ucx-tcp", size_bytes=5),
        TransferTotals(path="shm", size_bytes=4, seconds=1.5, transfers=2, retries=2),
    ]
    assert totals_by_path(parts) == [
        TransferTotals(path="shm", size_bytes=7, seconds=2.0, transfers=3, retries=3),
        TransferTotals(path="ucx-tcp", size_bytes=5),
    ]


def test_busy_periods_are_handed_over_once():
    busy = BusyClock()
    busy.start()
    busy.end()
    (period,) = busy.take()
    assert period.end_ns - period.start_ns == busy.total_ns and busy.take() == []


def test_an_engine_runs_in_its_own_environment(tmp_path, monkeypatch):
    assert interpreter_of(spec()) == sys.executable
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    for engine in ("vllm", "sglang"):
        with pytest.raises(EngineNotInstalled, match=engine) as caught:
            interpreter_of(spec(engine=engine))
        assert isinstance(caught.value, ConfigError) and "rollout.engine_python" in caught.value.remedy
    python = tmp_path / ".venv-vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert interpreter_of(spec(engine="vllm")) == str(python)
    with pytest.raises(EngineNotInstalled, match="no executable"):
        interpreter_of(spec(engine="vllm", python=str(tmp_path / "nowhere")))
