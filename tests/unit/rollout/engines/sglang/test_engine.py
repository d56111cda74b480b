"""SGLang's engine over a stand-in for its link: requests, versions, failures, figures."""

from __future__ import annotations

from typing import Any

import pytest

from earl.config.sampling_filters import SamplingFilters
from earl.errors import ConfigError, EngineError, WeightsIncomplete
from services.rollout.engines.contract.engine import GenerateRequest
from services.rollout.engines.sglang import engine as sglang
from services.rollout.engines.sglang.link import server_args
from tests.support.foreign_engines import (
    LOGPROB,
    MODEL,
    REUSED,
    Link,
    Staged,
    ask,
    refusal,
    spec,
    tokens,
    told,
)


@pytest.fixture
def make_sglang(monkeypatch):
    engines = []

    def make(**fields: Any) -> tuple[sglang.SglangEngine, Link]:
        monkeypatch.setattr(sglang, "load_spec", lambda directory: MODEL)
        monkeypatch.setattr(sglang, "SglangLink", Link)
        engines.append(sglang.SglangEngine(spec(engine="sglang", **fields)))
        return engines[-1], engines[-1]._link

    yield make
    for engine in engines:
        engine.close()


def test_sglang_sends_what_each_output_adds(make_sglang):
    engine, link = make_sglang()
    engine.submit(ask("stream"), True)
    engine.submit(ask("whole"), False)
    link.step()
    engine.collect()
    assert told(engine.outbox) == [tokens("stream", [4], 0, "")]
    link.step()
    engine.collect()
    assert told(engine.outbox) == [tokens("stream", [5], 0, "length"), tokens("whole", [4, 5], 0, "length")]
    stats = engine.stats()
    assert (stats.steps, stats.generated_tokens, stats.reused_tokens) == (3, 4, 2 * REUSED)
    assert (stats.prefilled_tokens, stats.retained, stats.running) == (2, 2, 0)


def test_sglang_returns_its_memory_on_a_gpu_and_says_that_it_cannot_on_a_cpu(make_sglang, monkeypatch):
    with pytest.raises(EngineError, match="cannot return its memory on cpu"):
        make_sglang(sleeps=True)
    monkeypatch.setattr(sglang, "_device_of", lambda spec: "cuda")
    engine, link = make_sglang(sleeps=True)
    assert engine.asleep and link.calls == ["release_memory"]
    assert refusal(engine, ask("a")) == "WeightsIncomplete"
    link.calls.clear()
    engine.wake()
    assert link.calls == ["take_memory", "resume"]
    engine._stager = Staged(2)
    engine.commit(2)
    engine.submit(ask("b"), False)
    link.step()
    link.calls.clear()
    engine.sleep()
    engine.collect()
    assert told(engine.outbox) == [tokens("b", [4], 2, "abort")]
    assert link.calls == ["pause abort", "release_memory"]


def test_the_memory_saver_of_sglang_is_on_only_where_engines_sleep():
    assert "enable_memory_saver" not in server_args(spec(), "m", "cuda")
    assert server_args(spec(sleeps=True), "m", "cuda")["enable_memory_saver"] is True


def test_sglang_ends_an_aborted_request_with_its_own_last_output(make_sglang):
    engine, link = make_sglang()
    engine.submit(ask("a", 9), False)
    link.step()
    engine.abort("a")
    assert engine.stats().running == 0 and not engine.outbox
    engine.collect()
    assert told(engine.outbox) == [tokens("a", [4], 0, "abort")]


def test_sglang_is_not_given_what_comes_while_it_is_paused(make_sglang):
    engine, link = make_sglang()
    engine.pause(keep=True)
    engine.submit(ask("a", 1), False)
    engine.submit(ask("b", 1), False)
    assert not link.running and engine.stats().waiting == 2 and engine.stats().kv_used_tokens == 0
    engine.abort("b")
    assert told(engine.outbox) == [tokens("b", [], 0, "abort", reused=0)]
    engine.resume()
    engine.resume()
    assert list(link.running) == ["a"] and link.calls == ["pause in_place", "resume"]
    engine.pause(keep=False)
    engine.collect()
    assert told(engine.outbox) == [tokens("a", [], 0, "abort")]


def test_sglang_is_refused_stop_texts(make_sglang):
    with pytest.raises(ConfigError, match=r"model\.stop_texts = \['x y'\] with rollout\.engine = \"sglang\""):
        make_sglang(stop_texts=("x y",))


def test_sglang_is_given_no_request_with_filters(make_sglang):
    engine, link = make_sglang()
    engine.submit(ask("a", filters=SamplingFilters(top_p=0.5, min_p=0.1)), False)
    ((kind, name, (error, message, remedy)),) = told(engine.outbox)
    assert (kind, name, error) == ("RequestRefused", "a", "EngineError") and not link.running
    assert message.startswith('top_p 0.5, min_p 0.1: rollout.engine = "sglang"') and remedy
    engine.submit(ask("a"), False)
    assert list(link.running) == ["a"]


@pytest.mark.parametrize("kv_on_update", ["keep", "recompute"])
def test_sglang_dates_tokens_by_its_own_account_of_versions(make_sglang, kv_on_update):
    engine, link = make_sglang(kv_on_update=kv_on_update)
    engine._stager = Staged(7)
    engine.submit(ask("old", 3), False)
    link.step()
    assert engine.commit(7).size_bytes == 16
    mode, flush = ("retract", True) if kv_on_update == "recompute" else ("in_place", False)
    assert link.calls == [f"pause {mode}", f"update 7 flush={flush}", "resume"]
    link.weight_versions = [{"start": 0, "end": 1, "version": 0}, {"start": 1, "end": 3, "version": 7}]
    link.step()
    link.step()
    engine.collect()
    (answer,) = told(engine.outbox)
    assert answer == ["Generation", "old", [4, 5, 6], [LOGPROB] * 3, [0, 7, 7], "length", REUSED]
    engine.submit(ask("new"), False)
    engine.submit(GenerateRequest(request_id="next", ids=[1] * 6, max_new_tokens=1, session="old"), False)
    assert link.cache_salts["new"] == "1"
    assert link.cache_salts["next"] == ("0" if kv_on_update == "keep" else "1")


def test_sglang_refuses_a_request_whose_first_tokens_it_dates_otherwise_later(make_sglang):
    engine, link = make_sglang()
    engine.submit(ask("a", 2), True)
    link.step()
    engine.collect()
    told(engine.outbox)
    link.weight_versions = [{"start": 0, "end": 2, "version": 3}]
    link.step()
    engine.collect()
    ((kind, name, (_, message, _)),) = told(engine.outbox)
    assert (kind, name) == ("RequestRefused", "a") and "dates its first tokens" in message


@pytest.mark.parametrize("paused", [False, True])
def test_sglang_refuses_everything_after_an_update_that_failed(make_sglang, paused):
    engine, link = make_sglang()
    engine._stager = Staged(7)
    engine.submit(ask("a"), False)
    if paused:
        engine.pause(keep=True)
        engine.submit(ask("held"), False)
        link.calls.clear()
    link.update_error = EngineError("SGLang refused a weight update: shapes")
    with pytest.raises(WeightsIncomplete, match="could not apply version 7: SGLang refused"):
        engine.commit(7)
    ends = [] if paused else ["resume"]
    assert link.calls == ["pause in_place", "update 7 flush=False", "pause abort", *ends]
    refused = [reply[:2] for reply in told(engine.outbox)]
    assert refused == [["RequestRefused", "a"], *([["RequestRefused", "held"]] if paused else [])]
    engine.collect()
    assert not engine.outbox
    assert refusal(engine, ask("b")) == WeightsIncomplete.__name__


def test_sglang_samples_nothing_with_weights_that_were_overwritten_meanwhile(make_sglang):
    engine, link = make_sglang()
    engine._stager = Staged(7, overwritten=True)
    engine.submit(ask("a"), False)
    with pytest.raises(WeightsIncomplete, match="could not apply version 7: it was overwritten"):
        engine.commit(7)
    assert link.calls == ["pause in_place", "update 7 flush=False", "pause abort", "resume"]
    assert [reply[:2] for reply in told(engine.outbox)] == [["RequestRefused", "a"]]
    assert refusal(engine, ask("b")) == WeightsIncomplete.__name__


def test_sglang_refuses_the_request_that_it_had_an_error_for_and_no_other(make_sglang):
    engine, link = make_sglang()
    engine.submit(ask("a"), False)
    engine.submit(ask("b", 1), False)
    link.running.pop("a").receive("a", ValueError("too long"))
    link.step()
    engine.collect()
    first, second = told(engine.outbox)
    assert first[:2] == ["RequestRefused", "a"] and "too long" in first[2][1]
    assert second == tokens("b", [4], 0, "length")
