"""vLLM's engine over a stand-in for vLLM: requests, versions, failures, figures."""

from __future__ import annotations

from typing import Any

import pytest

from earl.config.sampling_filters import SamplingFilters
from earl.errors import EngineBusy, EngineError, WeightsIncomplete
from services.rollout.engines.contract.engine import GenerateRequest
from services.rollout.engines.contract.stop_texts import StopTexts
from services.rollout.engines.vllm import core as vllm_core
from services.rollout.engines.vllm import engine as vllm
from tests.support.foreign_engines import (
    LOGPROB,
    MODEL,
    REUSED,
    VllmCore,
    ask,
    install_vllm,
    refusal,
    spec,
    tokens,
    told,
)


@pytest.fixture
def make_vllm(monkeypatch):
    def make(**fields: Any) -> tuple[vllm.VllmEngine, VllmCore]:
        core = VllmCore()
        install_vllm(monkeypatch)
        monkeypatch.setattr(vllm, "load_spec", lambda directory: MODEL)
        monkeypatch.setattr(vllm_core, "device_of", lambda spec: spec.device)
        monkeypatch.setattr(vllm_core, "start_core", lambda spec, model, device: core)
        return vllm.VllmEngine(spec(engine="vllm", **{"device": "cpu"} | fields)), core

    return make


def test_vllm_sleeps_at_level_2_on_a_gpu_and_says_that_it_cannot_on_a_cpu(make_vllm):
    engine, _ = make_vllm()
    with pytest.raises(EngineError, match="cannot return its memory on cpu"):
        engine.sleep()
    with pytest.raises(EngineError, match="cannot return its memory on cpu"):
        make_vllm(sleeps=True)
    engine, core = make_vllm(device="cuda", sleeps=True)
    assert engine.asleep and core.calls == ["earl_open", "reset_prefix_cache", "earl_drop", "sleep(2,)"]
    core.calls.clear()
    engine.sleep()
    assert refusal(engine, ask("a")) == "WeightsIncomplete" and not core.calls
    engine.wake()
    assert core.calls == ["wake_up"]
    load_vllm(engine, 3)
    engine.commit(3)
    engine.submit(ask("b"), False)
    engine.step()
    core.calls.clear()
    engine.sleep()
    assert told(engine.outbox) == [tokens("b", [4], 3, "abort")]
    assert core.calls == ["reset_prefix_cache", "earl_drop", "sleep(2,)"]
    assert core.scheduler.running == []


def test_vllm_gets_temperature_seed_and_filters_as_arguments_of_earls_sampler(make_vllm):
    engine, core = make_vllm()
    engine.submit(ask("a", temperature=0.5, seed=-1, filters=SamplingFilters(top_k=3, min_p=0.1)), False)
    engine.submit(ask("b"), False)
    first, second = (handle.request.sampling_params.extra_args for handle in core.waiting)
    assert first == {"temperature": 0.5, "seed": 2**64 - 1, "filters": {"top_k": 3, "min_p": 0.1}}
    assert second == {"temperature": 1.0, "seed": 0, "filters": {}}


def test_vllm_ends_an_answer_at_a_text(make_vllm, monkeypatch):
    """Its own scheduler does not know the text: the request is ended there."""
    stops = StopTexts([",5,6"], lambda ids: "".join(f",{token}" for token in ids))
    monkeypatch.setattr(vllm, "stop_texts_of", lambda spec: stops)
    engine, core = make_vllm()
    engine.submit(ask("a", 9), False)
    engine.submit(ask("last", 3), True)
    for _ in range(3):
        engine.step()
    assert told(engine.outbox) == [
        tokens("last", [4], 0, ""),
        tokens("last", [5], 0, ""),
        tokens("a", [4, 5, 6], 0, "stop"),
        tokens("last", [6], 0, "stop"),
    ]
    assert core.scheduler.running == [] and not engine.has_work
    request = ask("moved", 9)
    request.ids, request.answered = [3, 4, 5, 5, 6, 5], 1
    engine.submit(request, False)
    engine.step()
    assert told(engine.outbox) == [tokens("moved", [6], 0, "stop")]


def test_a_text_that_ends_inside_a_draft_ends_the_answer_there(make_vllm, monkeypatch):
    stops = StopTexts([",5,6"], lambda ids: "".join(f",{token}" for token in ids))
    monkeypatch.setattr(vllm, "stop_texts_of", lambda spec: stops)
    engine, _ = make_vllm()
    engine.submit(ask("a", 9), False)
    engine.step()
    engine._generated = 5
    entry = engine._in_flight["a"]
    # What one step of vLLM gave.
    entry.ids, entry.logprobs = [4, 5, 6, 7, 8], [LOGPROB] * 5
    assert engine._end_at_text(entry, 4)
    assert (entry.ids, len(entry.logprobs), engine._generated) == ([4, 5, 6], 3, 3)
    entry.ids, entry.logprobs = [4, 6, 5, 7], [LOGPROB] * 4
    assert not engine._end_at_text(entry, 3) and len(entry.ids) == 4


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
    assert core.cache_salts["new"] == "1"
    assert core.cache_salts["next"] == ("0" if kv_on_update == "keep" else "1")


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
