"""The engines of other projects over stand-ins for those projects: requests, versions, failures, figures."""

from __future__ import annotations

from typing import Any

import pytest

from earl.errors import EngineBusy, EngineError, WeightsIncomplete
from earl.models.spec import ModelSpec
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.sglang import engine as sglang
from services.rollout.engines.vllm import core as vllm_core
from services.rollout.engines.vllm import engine as vllm
from tests.support.foreign_engines import LOGPROB, REUSED, Link, Staged, VllmCore, install_vllm, told

MODEL = ModelSpec("llama", 64, 1, 2, 1, 32, 48, 61)


def spec(**fields: Any) -> EngineSpec:
    return EngineSpec(name="e", model_dir="m", device="cpu", max_sequences=2, max_context_tokens=64, **fields)


def ask(name: str, new: int = 2, **fields: Any) -> GenerateRequest:
    return GenerateRequest(request_id=name, ids=[5, 6, 7, 8], max_new_tokens=new, session=name, **fields)


def tokens(name: str, ids: list[int], version: int, finish: str, reused: int = REUSED) -> list[Any]:
    return ["Generation", name, ids, [LOGPROB] * len(ids), [version] * len(ids), finish, reused]


def refusal(engine: Any, request: GenerateRequest) -> str:
    """The name of the error that a request is refused with."""
    engine.submit(request, False)
    return engine.outbox.pop().error.kind


@pytest.fixture
def make_vllm(monkeypatch):
    def make(**fields: Any) -> tuple[vllm.VllmEngine, VllmCore]:
        core = VllmCore()
        install_vllm(monkeypatch)
        monkeypatch.setattr(vllm, "load_spec", lambda directory: MODEL)
        monkeypatch.setattr(vllm_core, "device_of", lambda spec: "cpu")
        monkeypatch.setattr(vllm_core, "start_core", lambda spec, model, device: core)
        return vllm.VllmEngine(spec(engine="vllm", **fields)), core

    return make


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


# --- vLLM -------------------------------------------------------------------------------------------


def load_vllm(engine: vllm.VllmEngine, version: int) -> list[Any]:
    engine.drop()
    engine.load(version, version, ["k"], 1.0)
    engine.collect()
    return told(engine.outbox)


def test_vllm_streams_a_token_a_step_and_sends_whole_answers_at_once(make_vllm):
    engine, core = make_vllm()
    engine.submit(ask("stream"), True)
    engine.submit(ask("whole"), False)
    engine.submit(ask("late"), False)
    assert engine.has_work and (engine.stats().running, engine.stats().waiting) == (0, 3)
    engine.step()
    assert told(engine.outbox) == [tokens("stream", [4], 0, "")]
    engine.step()
    assert told(engine.outbox) == [tokens("stream", [5], 0, "length"), tokens("whole", [4, 5], 0, "length")]
    engine.step()
    engine.abort("late")
    engine.abort("unknown")
    assert told(engine.outbox) == [tokens("late", [4], 0, "abort")]
    stats = engine.stats()
    assert (stats.steps, stats.generated_tokens, stats.reused_tokens) == (3, 5, 3 * REUSED)
    assert (stats.prefilled_tokens, stats.preemptions, stats.retained) == (3, 3, 3)
    assert (stats.kv_tokens, stats.kv_used_tokens, stats.kv_used_fraction) == (8 * 32, 4 * 32, 0.5)
    assert not engine.has_work and core.scheduler.running == []


def test_vllm_steps_nothing_while_it_is_paused(make_vllm):
    engine, _ = make_vllm()
    engine.submit(ask("a"), False)
    engine.pause(keep=True)
    assert not engine.has_work
    engine.resume()
    assert engine.has_work
    engine.pause(keep=False)
    assert told(engine.outbox) == [tokens("a", [], 0, "abort", reused=0)]


def test_vllm_refuses_what_waits_beyond_the_queue(make_vllm):
    engine, _ = make_vllm(max_waiting=1)
    engine.submit(ask("a"), False)
    assert refusal(engine, ask("b")) == EngineBusy.__name__


@pytest.mark.parametrize("kv_on_update", ["keep", "recompute"])
def test_vllm_gives_what_begins_after_a_commit_a_new_salt(make_vllm, kv_on_update):
    engine, core = make_vllm(kv_on_update=kv_on_update)
    engine.submit(ask("old", 3), False)
    engine.step()
    assert load_vllm(engine, 7)[0][0] == "CallAnswer"
    with pytest.raises(WeightsIncomplete, match="has version 7 staged, not 8"):
        engine.commit(8)
    report = engine.commit(7)
    assert (report.version, report.size_bytes, engine.version) == (7, 10, 7)
    assert ("reset_prefix_cache" in core.calls) == (kv_on_update == "recompute")
    engine.step()
    engine.step()
    (answer,) = told(engine.outbox)
    assert answer == ["Generation", "old", [4, 5, 6], [LOGPROB] * 3, [0, 7, 7], "length", REUSED]
    engine.submit(ask("new"), False)
    engine.submit(GenerateRequest(request_id="next", ids=[1] * 6, max_new_tokens=1, session="old"), False)
    assert core.salts["new"] == "1"
    assert core.salts["next"] == ("0" if kv_on_update == "keep" else "1")


def test_vllm_refuses_everything_after_a_commit_that_failed_half_way(make_vllm):
    engine, core = make_vllm()
    engine.submit(ask("a"), False)
    load_vllm(engine, 7)
    core.apply_error = EngineError("no such tensor")
    with pytest.raises(WeightsIncomplete, match="could not apply version 7: no such tensor"):
        engine.commit(7)
    ((kind, name, (error, message, _)),) = told(engine.outbox)
    assert (kind, name, error) == ("RequestRefused", "a", "WeightsIncomplete") and "no such tensor" in message
    assert core.waiting == [] and "reset_prefix_cache" in core.calls and not engine.has_work
    assert refusal(engine, ask("b")) == WeightsIncomplete.__name__
    core.apply_error = None
    load_vllm(engine, 8)
    engine.commit(8)
    engine.submit(ask("b", 1), False)
    engine.step()
    assert told(engine.outbox) == [tokens("b", [4], 8, "length")]


def test_vllm_fails_every_request_when_logits_are_not_finite(make_vllm):
    engine, core = make_vllm()
    engine.submit(ask("a"), True)
    engine.submit(ask("b"), False)
    core.broken = True
    engine.step()
    assert [reply[:2] for reply in told(engine.outbox)] == [["RequestRefused", "a"], ["RequestRefused", "b"]]
    assert not engine.has_work


# --- SGLang -----------------------------------------------------------------------------------------


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
    assert link.salts["new"] == "1"
    assert link.salts["next"] == ("0" if kv_on_update == "keep" else "1")


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
