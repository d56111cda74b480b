"""Bounded KV, shared prefixes and determinism of the torch engine, in this process: what is sampled does
not depend on what the cache had room for."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.errors import ContextTooLong
from earl.models.parallel import TensorParallel
from earl.models.slices import rank_parameters
from earl.models.spec import ModelSpec
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest, Generation
from services.rollout.engines.torch.engine import TorchEngine
from services.rollout.engines.torch.model_runner import ModelRunner
from services.rollout.engines.torch.ranks import EngineRank, Followers
from tests.support import threads
from tests.support.staged import StagedArrays, give_stager

MODEL = ModelSpec("qwen3", 32, 2, 4, 2, 64, 48, 29, qk_norm=True, tied=True)
CONTEXT, SLOTS = 96, 6
# Tokens of a page of the cache in these runners: 4,096 bytes of 64-wide rows.
PAGES = {torch.float32: 16, torch.bfloat16: 32}


one_thread = threads.one_thread


class Weights:
    """Versions of random weights, as a stager that has read them."""

    def take(self, version: int) -> StagedArrays:
        generator = torch.Generator().manual_seed(version)
        tensors = {
            name: torch.randn(shape, generator=generator) * (0.15 if len(shape) > 1 else 1.0)
            for name, shape in MODEL.shapes().items()
        }
        own = rank_parameters(MODEL, 0, 1, fused=True)
        arrays = {name: np.empty(one.shape, np.float32) for name, one in own.items()}
        for name, one in own.items():
            for part in one.parts:
                arrays[name][part.target.slices()] = tensors[part.source].numpy()[part.box.slices()]
        return StagedArrays(arrays)

    def applied(self, staged: StagedArrays, seconds: float) -> None: ...


def make(dtype: torch.dtype = torch.float32, **fields: Any) -> TorchEngine:
    spec = EngineSpec(
        name="unit",
        model_dir="",
        max_sequences=SLOTS,
        max_context_tokens=CONTEXT,
        dtype=str(dtype).removeprefix("torch."),  # type: ignore[arg-type]
        **fields,
    )
    rank = EngineRank.__new__(EngineRank)
    give_stager(rank, Weights())
    rank.runner = ModelRunner(
        MODEL,
        TensorParallel(),
        slots=SLOTS,
        context=CONTEXT,
        dtype=dtype,
        deterministic=spec.deterministic,
    )
    engine = TorchEngine(spec, rank, Followers([]))
    engine.commit(1)
    return engine


def ask(name: str, ids: list[int], new: int, **fields: Any) -> GenerateRequest:
    return GenerateRequest(request_id=name, ids=ids, max_new_tokens=new, **fields)


def finish(engine: TorchEngine, results: dict[str, Generation]) -> None:
    """Move what ended from the outbox to results."""
    for reply in engine.outbox:
        assert isinstance(reply, Generation), reply
        results[reply.request_id] = reply
    engine.outbox.clear()


def run(engine: TorchEngine, requests: list[GenerateRequest]) -> dict[str, Generation]:
    results: dict[str, Generation] = {}
    for request in requests:
        engine.submit(request, stream=False)
    while engine.has_work:
        engine.step()
        finish(engine, results)
        budget = engine._kv.budget
        assert budget.committed.sum() <= budget.bound
        assert (engine._table.cached <= budget.committed).all()
    finish(engine, results)
    return results


def prompts(count: int, seed: int = 0, shared: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    head = rng.integers(0, 29, shared).tolist()
    return [head + rng.integers(0, 29, int(rng.integers(1, 20))).tolist() for _ in range(count)]


def close(found: dict[str, Generation], wanted: dict[str, Generation]) -> None:
    assert found.keys() == wanted.keys()
    for name, each in found.items():
        assert each.ids == wanted[name].ids and each.versions == wanted[name].versions, name
        assert np.abs(np.array(each.logprobs) - np.array(wanted[name].logprobs)).max() < 1e-4


# --- memory -----------------------------------------------------------------------------------------


def test_a_bound_preempts_and_changes_nothing():
    requests = [ask(str(n), ids, 40, seed=n) for n, ids in enumerate(prompts(10))]
    free = run(make(), requests)
    # Room for two or three of six at their longest.
    engine = make(kv_tokens=144)
    close(run(engine, requests), free)
    stats = engine.stats()
    assert stats.preemptions > 0 and stats.kv_tokens == 144
    assert stats.kv_used_tokens == 0 < stats.kv_committed_tokens <= 144
    assert make(kv_tokens=0).stats().kv_tokens == SLOTS * CONTEXT


def test_the_oldest_is_never_preempted_and_all_end_in_turn():
    engine = make(kv_tokens=96)
    results: dict[str, Generation] = {}
    ended: list[str] = []
    for n in range(8):
        engine.submit(ask(str(n), prompts(1, n)[0], 60, seed=n), stream=False)
    while engine.has_work:
        oldest = next(str(n) for n in range(8) if str(n) not in results)
        engine.step()
        finish(engine, results)
        ended += [name for name in results if name not in ended]
        assert oldest in results or oldest in engine._table.slot_of
    assert ended == [str(n) for n in range(8)] and engine.stats().preemptions > 0


def test_idle_sessions_go_before_anything_that_runs():
    engine = make(kv_tokens=160)
    run(engine, [ask(f"s{n}", [n] * 20, 4, session=f"s{n}") for n in range(3)])
    assert engine.stats().retained == 3
    run(engine, [ask(str(n), [n] * 30, 30) for n in range(2)])
    stats = engine.stats()
    assert stats.preemptions == 0 and stats.evicted_sessions > 0


def test_what_could_never_fit_is_refused():
    engine = make(kv_tokens=64)
    engine.submit(ask("long", [1] * 40, 25), stream=False)
    engine.submit(ask("fits", [1] * 40, 24), stream=False)
    refused = engine.outbox.pop()
    assert isinstance(refused, wire.RequestRefused) and refused.error.kind == ContextTooLong.__name__
    assert "64 tokens that the KV cache holds" in refused.error.message
    assert len(run(engine, [])["fits"].ids) == 24


def test_a_preempted_request_can_be_aborted_and_streams_on():
    engine = make(kv_tokens=96)
    first, second = prompts(2, shared=10)
    alone = run(make(), [ask("b", second, 50, seed=2)])["b"]
    engine.submit(ask("a", first, 60, seed=1), stream=False)
    engine.submit(ask("b", second, 50, seed=2), stream=True)
    while not engine.stats().preemptions:
        engine.step()
    chunks = [reply for reply in engine.outbox if isinstance(reply, Generation)]
    engine.outbox.clear()
    engine.abort("a")
    engine.outbox.clear()
    while engine.has_work:
        engine.step()
    chunks += [reply for reply in engine.outbox if isinstance(reply, Generation)]
    assert [token for chunk in chunks for token in chunk.ids] == alone.ids

    engine.outbox.clear()
    engine.submit(ask("a", first, 60, seed=1), stream=False)
    engine.submit(ask("b", second, 50, seed=2), stream=False)
    while engine.stats().preemptions < 2:
        engine.step()
    engine.outbox.clear()
    engine.abort("b")
    (aborted,) = engine.outbox
    assert isinstance(aborted, Generation) and aborted.finish == "abort"
    assert 0 < len(aborted.ids) == len(aborted.logprobs) < 50
    assert aborted.ids == alone.ids[: len(aborted.ids)]


# --- prefixes ---------------------------------------------------------------------------------------


def test_a_group_computes_its_prompt_once():
    (head,) = prompts(1, shared=40)
    requests = [ask(str(n), head, 12, seed=n) for n in range(SLOTS)]
    alone = {str(n): run(make(), [requests[n]])[str(n)] for n in range(SLOTS)}
    engine = make()
    results = run(engine, requests)
    close(results, alone)
    whole = (len(head) - 1) // 16 * 16
    assert sorted(each.reused_tokens for each in results.values()) == [0] + [whole] * (SLOTS - 1)
    assert engine.stats().reused_tokens == whole * (SLOTS - 1)
    # Those that have ended serve later ones, until their slots are needed.
    assert run(engine, [ask("later", [*head, 1, 2], 4)])["later"].reused_tokens >= whole


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_an_older_versions_kv_serves_nobody_else(kv):
    engine = make(kv_on_update=kv)
    (ids,) = prompts(1, shared=40)
    engine.submit(ask("running", ids, 30, seed=1), stream=False)
    for _ in range(5):
        engine.step()
    engine.commit(2)
    fresh = ask("fresh", ids, 8, seed=3)
    results = run(engine, [fresh])
    other = make()
    other.commit(2)
    wanted = run(other, [fresh])
    close({"fresh": results["fresh"]}, wanted)
    assert set(results["running"].versions) == {1, 2}
    if kv == "keep":
        assert results["fresh"].reused_tokens == 0
    again = run(engine, [ask("again", ids, 8, seed=3)])["again"]
    assert again.reused_tokens > 0 and again.ids == results["fresh"].ids


def test_what_is_wiped_is_gone():
    engine = make()
    cache = engine._rank.runner.cache
    for column in (*cache.keys, *cache.values):
        column.fill_(float("nan"))
    engine._kv.wipe()
    assert run(engine, [ask("a", [3, 4, 5], 20)])["a"].ids == run(make(), [ask("a", [3, 4, 5], 20)])["a"].ids
    assert all(column.isfinite().all() for column in (*cache.keys, *cache.values))


# --- deterministic ----------------------------------------------------------------------------------


def bits(results: dict[str, Generation]) -> dict[str, tuple[list[int], list[float]]]:
    return {name: (each.ids, each.logprobs) for name, each in results.items()}


@pytest.fixture(scope="module", params=PAGES, ids=str)
def alone(request) -> tuple[torch.dtype, dict[str, tuple[list[int], list[float]]], list[GenerateRequest]]:
    """(dtype, what each request gets when it runs by itself without a cache, the requests)."""
    dtype = request.param
    heads = prompts(3, seed=5, shared=30)
    requests = [
        ask(str(n), [*heads[n % 3][: 10 + 6 * n], n], 14, seed=n, temperature=(0.0, 0.7, 1.0)[n % 3])
        for n in range(7)
    ]
    wanted: dict[str, tuple[list[int], list[float]]] = {}
    for one in requests:
        wanted |= bits(run(make(dtype, deterministic=True), [one]))
    return dtype, wanted, requests


@settings(max_examples=6)
@given(data=st.data())
def test_deterministic_is_bit_for_bit(alone, data):
    dtype, wanted, requests = alone
    page = PAGES[dtype]
    engine = make(
        dtype,
        deterministic=True,
        prefill_tokens=data.draw(st.sampled_from([1, 7, 33, 1024])),
        kv_tokens=data.draw(st.sampled_from([0, 4 * page, 7 * page])),
    )
    order = data.draw(st.permutations(requests))
    results: dict[str, Generation] = {}
    for request in order:
        session = data.draw(st.sampled_from(["", request.request_id]))
        engine.submit(msgspec.structs.replace(request, session=session), stream=False)
        for _ in range(data.draw(st.integers(0, 9))):
            engine.step()
            finish(engine, results)
    results |= run(engine, [])
    assert bits(results) == wanted


def test_a_deterministic_turn_continues_its_session_bit_for_bit():
    ids = prompts(1, shared=20)[0]
    whole = run(make(deterministic=True), [ask("whole", ids, 30, seed=4)])["whole"]
    engine = make(deterministic=True)
    first = run(engine, [ask("first", ids, 13, seed=4, session="s")])["first"]
    second = run(engine, [ask("second", ids + first.ids, 17, seed=4, session="s")])["second"]
    assert second.reused_tokens > 0
    assert first.ids + second.ids == whole.ids and first.logprobs + second.logprobs == whole.logprobs
