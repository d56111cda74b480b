"""Checks what every engine promises (engines/contract/engine.py): interruption, weights, life and death."""

import asyncio
import copy
import signal
import sys
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch

from earl.errors import (
    ConfigError,
    DataPlaneError,
    EngineError,
    EngineLost,
    IllegalParallelism,
    ModelNotFound,
    ReshapeRefused,
    VersionGone,
    WeightsIncomplete,
)
from earl.models.spec import SPECIALS
from earl.models.tokenizer import Tokenizer
from services.rollout.engines.contract.engine import Generation, KvOffer
from services.rollout.engines.process.client import EngineProcess
from tests.support import engines
from tests.support.clock import no_deadline
from tests.support.engines import (
    CONTEXT,
    DEVICE,
    MODELS,
    MOST_RANKS,
    SLOTS,
    TRAITS,
    ask,
    assert_close,
    assert_gone,
    needs,
    needs_ranks,
    prompt,
    recompute,
    steady,
    whole_blocks,
)
from tests.support.idle import assert_sleeps

pytestmark = pytest.mark.asyncio(loop_scope="module")
run, model_dir, spec, weights = engines.run, engines.model_dir, engines.spec, engines.weights
shared, own, reloaded = engines.shared, engines.own, engines.reloaded


# --- stop texts -----------------------------------------------------------------------------------


async def test_stop_texts_end_a_generation(shared, own, model_dir):
    """The text is of two tokens; the first of them may have been sampled by another engine."""
    needs(shared, "stop_texts", "its answers end at tokens alone")
    ids, decode = prompt(6), Tokenizer.load(model_dir).decode
    free = await shared.generate_all(ask(ids, 12, seed=4, **steady(shared)))
    # Special tokens have no text.
    first = next(n for n in range(3, 11) if min(free.ids[n : n + 2]) >= len(SPECIALS))
    text = decode(free.ids[first : first + 2])

    def up_to_text(answer: list[int]) -> list[int]:
        lengths = range(1, len(answer) + 1)
        return answer[: next((n for n in lengths if text in decode(answer[:n])), len(answer))]

    expected = up_to_text(free.ids)
    engine = await own(stop_texts=("nothing like it", text))

    async def sample(new: int, begun: int = 0, answered: int = 0) -> Generation:
        context = ids + free.ids[:begun]
        request = ask(context, new, seed=4, answered=answered, **steady(shared))
        return await engine.generate_all(request)

    stopped = await sample(12)
    assert (stopped.ids, stopped.finish) == (expected, "stop")
    assert_close(stopped.logprobs, free.logprobs[: len(expected)])
    # Where the last token that may be sampled completes the text, the text has ended the answer.
    last = await sample(len(expected))
    assert (last.ids, last.finish) == (expected, "stop")
    begun = len(expected) - 1
    assert (await sample(12 - begun, begun, begun)).ids == expected[-1:]
    assert (await sample(12 - begun, begun)).ids == up_to_text(free.ids[begun:])
    chunks = [chunk async for chunk in engine.generate(ask(ids, 12, seed=4, **steady(shared)))]
    assert [token for chunk in chunks for token in chunk.ids] == expected
    assert chunks[-1].finish == "stop"


# --- interruption ---------------------------------------------------------------------------------


async def test_abort_returns_what_there_is(shared):
    request = ask(prompt(6), 900, seed=5, **steady(shared))
    whole = await shared.generate_all(ask(prompt(6), 40, seed=5, **steady(shared)))
    chunks = []
    async for chunk in shared.generate(request):
        chunks.append(chunk)
        if len(chunks) == 3:
            await shared.abort(request.request_id)
    ids = [token for chunk in chunks for token in chunk.ids]
    assert chunks[-1].finish == "abort" and 3 <= len(ids) < 900
    assert ids[:40] == whole.ids[: len(ids)]
    await shared.abort("nobody")
    await shared.pause()
    waiting = ask(prompt(6), 5)
    task = asyncio.create_task(shared.generate_all(waiting))
    await shared.stats()
    await shared.abort(waiting.request_id)
    generation = await task
    assert (generation.ids, generation.finish) == ([], "abort")
    await shared.resume()


async def test_leaving_a_call_aborts_it(shared):
    task = asyncio.create_task(shared.generate_all(ask(prompt(6), 1000)))
    while (await shared.stats()).running == 0:
        pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stream = shared.generate(ask(prompt(6), 1000))
    await anext(stream)
    await stream.aclose()
    stats = await shared.stats()
    assert (stats.running, stats.waiting) == (0, 0)


async def test_pause_keeps_sequences_and_resume_continues_them(shared):
    wanted = await shared.generate_all(ask(prompt(6), 300, seed=8, **steady(shared)))
    stream = shared.generate(ask(prompt(6), 300, seed=8, **steady(shared)))
    chunks = [await anext(stream)]
    await shared.pause(keep=True)
    before = await shared.stats()
    later = asyncio.create_task(shared.generate_all(ask(prompt(4), 2)))
    after = await shared.stats()
    assert after.steps == before.steps
    await shared.resume()
    chunks += [chunk async for chunk in stream]
    assert [token for chunk in chunks for token in chunk.ids] == wanted.ids
    assert len((await later).ids) == 2


async def test_an_engine_says_how_full_its_device_is(shared):
    memory = (await shared.stats()).memory
    assert memory is not None and 0 < memory.used_bytes < memory.size_bytes
    if shared.caps.device.startswith("cpu"):
        # Each engine's part of what all of the host share; Python with torch alone holds some 50 MB.
        assert memory.host and memory.used_bytes > 50 << 20


async def test_pause_without_keep_ends_requests(shared):
    tasks = [asyncio.create_task(shared.generate_all(ask(prompt(6, n), 1000))) for n in range(SLOTS + 2)]
    await shared.stats()
    await shared.pause(keep=False)
    assert {generation.finish for generation in await asyncio.gather(*tasks)} == {"abort"}
    await shared.resume()


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", ["keep", "recompute"])
async def test_sequences_in_flight_continue_with_new_weights(reloaded, own, weights, kv):
    engine = reloaded if reloaded.spec.kv_on_update == kv else await own(kv_on_update=kv)
    before = await engine.stats()
    version, keys = await weights.publish(MODELS[1])
    await engine.begin_update(version)
    staged = await engine.load(version, keys, 30.0)
    assert staged.size_bytes >= sum(t.numel() * 4 for t in MODELS[1].state_dict().values())
    ids, got, logprobs, versions = prompt(6), [], [], []
    request = ask(ids, 1000, seed=8)
    async for chunk in engine.generate(request):
        got, logprobs, versions = got + chunk.ids, logprobs + chunk.logprobs, versions + chunk.versions
        if len(versions) == 3:
            await engine.commit(version)
        if versions.count(version) == 5:
            await engine.abort(request.request_id)
    assert versions == sorted(versions) and set(versions) == {before.version, version}
    old = versions.count(before.version)
    assert 3 <= old < len(got)
    assert_close(logprobs[:old], recompute(MODELS[0], ids, got[:old]))
    # The whole prefix was computed again with the new weights, or its keys and values are the old ones.
    wholly_new = recompute(MODELS[1], ids + got[:old], got[old:])
    if kv == "recompute":
        assert_close(logprobs[old:], wholly_new)
    else:
        assert np.isfinite(logprobs).all()
        assert np.abs(np.asarray(logprobs[old:]) - wholly_new.numpy()).max() > 1e-3
    stats = await engine.stats()
    assert stats.version == version
    read = [sum(transfer.size_bytes for transfer in each.transfers) for each in (before, stats)]
    assert read[1] - read[0] == staged.size_bytes
    await weights.remove(keys)


async def test_sequences_without_room_wait_and_are_preempted(own):
    """Room for two whole contexts, asked for by four sequences that grow to three quarters of one each."""
    engine = await own(kv_tokens=2 * CONTEXT)
    requests = [ask(prompt(CONTEXT // 4 + n, n), CONTEXT // 2, seed=n) for n in range(SLOTS)]
    generations = await asyncio.gather(*map(engine.generate_all, requests))
    stats = await engine.stats()
    assert stats.kv_tokens < SLOTS * CONTEXT
    # A GPU's cache is allocated whole: only whole contexts are admitted, and none is preempted.
    assert (stats.preemptions > 0) == (DEVICE == "cpu")
    for request, generation in zip(requests, generations, strict=True):
        assert len(generation.ids) == CONTEXT // 2 and generation.finish == "length"
        assert_close(generation.logprobs, recompute(MODELS[0], request.ids, generation.ids))


async def test_kept_kv_is_the_old_versions(reloaded, weights):
    engine = reloaded
    assert engine.spec.kv_on_update == "keep"
    version, keys = await weights.publish(MODELS[1])
    ids = prompt(2 * TRAITS[engine.spec.engine].prefix_block_tokens + 18)
    first = await engine.generate_all(ask(ids, 4, seed=2, session="kept"))
    report = await engine.load_weights(version, keys)
    assert report.version == version and report.size_bytes > 0
    second = await engine.generate_all(ask(ids + first.ids, 4, seed=2, session="kept"))
    assert second.reused_tokens == whole_blocks(engine, len(ids) + 3) and second.versions == [version] * 4
    fresh = await engine.generate_all(ask(ids, 4, seed=2))
    assert fresh.reused_tokens == 0
    assert_close(fresh.logprobs, recompute(MODELS[1], ids, fresh.ids))
    await weights.remove(keys)


async def test_only_whole_versions_are_used(own, weights):
    engine = await own(load_initial=False)
    name = "model.layers.1.mlp.up_proj.weight"

    async def assert_loads_fail() -> None:
        gone, keys = await weights.publish(MODELS[1])
        await weights.remove(keys)
        with pytest.raises(VersionGone):
            await engine.load_weights(gone, keys)
        partial, keys = await weights.publish(MODELS[1], without=name)
        with pytest.raises(DataPlaneError, match=name):
            await engine.load_weights(partial, keys)
        with pytest.raises(WeightsIncomplete, match=f"not {partial}"):
            await engine.commit(partial)
        await weights.remove(keys)

    await assert_loads_fail()
    with pytest.raises(WeightsIncomplete):
        await engine.generate_all(ask(prompt(6), 4))
    version, keys = await weights.publish(MODELS[1])
    await engine.load_weights(version, keys)
    await weights.remove(keys)
    # The version before stays in use when a later one cannot be loaded.
    await assert_loads_fail()
    # Nor does one that was read and not committed change anything.
    staged, keys = await weights.publish(MODELS[0])
    await engine.begin_update(staged)
    await engine.load(staged, keys, 30.0)
    generation = await engine.generate_all(ask(prompt(6), 4))
    assert generation.versions == [version] * 4
    assert_close(generation.logprobs, recompute(MODELS[1], prompt(6), generation.ids))
    await engine.commit(staged)
    generation = await engine.generate_all(ask(prompt(6), 4))
    assert_close(generation.logprobs, recompute(MODELS[0], prompt(6), generation.ids))
    await weights.remove(keys)
    # One that was withdrawn before it was applied is refused, and the version before stays in use.
    withdrawn, keys = await weights.publish(MODELS[1])
    await engine.begin_update(withdrawn)
    await engine.load(withdrawn, keys, 30.0)
    await weights.remove(keys)
    with pytest.raises(VersionGone):
        await engine.commit(withdrawn)
    generation = await engine.generate_all(ask(prompt(6), 4))
    assert generation.versions == [staged] * 4
    assert_close(generation.logprobs, recompute(MODELS[0], prompt(6), generation.ids))


async def test_a_head_that_is_the_embedding_is_updated_with_it(own, weights, tmp_path):
    tied = [engines.random_model(seed, tie_word_embeddings=True) for seed in range(2)]
    tied[0].save_pretrained(tmp_path / "tied")
    engine = await own(model_dir=str(tmp_path / "tied"), load_initial=False)
    for model in tied:
        version, keys = await weights.publish(model)
        await engine.load_weights(version, keys)
        await weights.remove(keys)
        generation = await engine.generate_all(ask(prompt(6), 8, seed=2))
        assert_close(generation.logprobs, recompute(model, prompt(6), generation.ids))


async def test_broken_weights_fail_requests_and_not_the_engine(reloaded, weights):
    engine = reloaded
    needs(engine, "survives_broken_weights", "its own sampling fails on them")
    broken = copy.deepcopy(MODELS[1])
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    version, keys = await weights.publish(broken)
    await engine.load_weights(version, keys)
    await weights.remove(keys)
    tasks = [asyncio.create_task(engine.generate_all(ask(prompt(6, n), 40, session="s"))) for n in range(3)]
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, EngineError) and f"version {version}" in str(result)
    version, keys = await weights.publish(MODELS[1])
    await engine.load_weights(version, keys)
    await weights.remove(keys)
    generation = await engine.generate_all(ask(prompt(6), 4))
    assert_close(generation.logprobs, recompute(MODELS[1], prompt(6), generation.ids))


# --- life and death -------------------------------------------------------------------------------


async def test_a_hand_over_is_refused_where_it_cannot_be_done(shared, own):
    """Handover is refused by engines that cannot, and by one whose tokens must not depend on which tp
    computed their KV.
    """
    engine = await own(deterministic=True) if shared.caps.live_reshape else shared
    assert not engine.caps.live_reshape
    offer = KvOffer(name="o", keys=[], version=0, sessions=[], size_bytes=0)
    for call in (engine.offer_kv("o", {}, 5.0), engine.take_kv(offer, 5.0), engine.withdraw_kv("o")):
        with pytest.raises(ReshapeRefused):
            await call


async def test_ranks_may_share_a_key_value_head(spec, own, weights):
    """Four ranks, two key-value heads: each reads the one that its queries attend to."""
    if spec.tp != 2:
        pytest.skip("one engine of four ranks is enough")
    needs_ranks(4)
    engine = await own(tp=4)
    ids = prompt(11)
    first = await engine.generate_all(ask(ids, 8, temperature=0.0))
    assert_close(first.logprobs, recompute(MODELS[0], ids, first.ids))
    version, keys = await weights.publish(MODELS[1])
    report = await engine.load_weights(version, keys)
    sizes = {name: 4 * tensor.numel() for name, tensor in MODELS[1].state_dict().items()}
    twice = sum(size for name, size in sizes.items() if "k_proj" in name or "v_proj" in name)
    whole = sum(size for name, size in sizes.items() if "_proj." not in name)
    assert report.size_bytes == sum(sizes.values()) + twice + 3 * whole
    await weights.remove(keys)
    second = await engine.generate_all(ask(ids, 8, temperature=0.0))
    assert_close(second.logprobs, recompute(MODELS[1], ids, second.ids))


async def test_an_idle_engine_uses_no_cpu(shared):
    await shared.generate_all(ask(prompt(6), 4))
    # The ranks of a torch engine look for a command every 10 ms.
    await assert_sleeps(shared.pids, wakeups_per_s=120)


async def test_death_fails_every_call_and_leaves_no_process(own, spec):
    for victim in range(spec.tp):
        engine = await own()
        await engine.pause()
        calls: list[Any] = [asyncio.create_task(engine.generate_all(ask(prompt(5, n), 9))) for n in range(3)]
        calls.append(asyncio.create_task(anext(engine.generate(ask(prompt(5), 9)))))
        calls.append(asyncio.create_task(engine.wait_lost()))
        await engine.stats()
        psutil.Process(engine.pids[victim]).send_signal(signal.SIGKILL)
        with no_deadline():
            *results, lost = await asyncio.gather(*calls, return_exceptions=True)
        assert lost is None and all(isinstance(result, EngineLost) for result in results)
        with pytest.raises(EngineLost, match=rf"rank {victim} ended with SIGKILL"):
            await engine.generate_all(ask(prompt(5), 1))
        await assert_gone(engine.pids)


async def test_stop_ends_requests_and_processes(own):
    engine = await own()
    task = asyncio.create_task(engine.generate_all(ask(prompt(5), 1000)))
    await engine.stats()
    await engine.stop()
    with pytest.raises(EngineLost, match="stopped"):
        await task
    await assert_gone(engine.pids)
    await engine.stop()


async def test_processes_end_with_the_service(spec, tmp_path):
    (tmp_path / "spec.json").write_bytes(msgspec.json.encode(spec))
    script = """
import asyncio, pathlib, sys, msgspec
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.process.client import EngineProcess

async def main():
    spec = msgspec.json.decode(pathlib.Path(sys.argv[1]).read_bytes(), type=EngineSpec)
    engine = EngineProcess(spec)
    await engine.start()
    print(*engine.pids, flush=True)
    await engine.wait_lost()

asyncio.run(main())
"""
    service = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path / "spec.json"), stdout=asyncio.subprocess.PIPE
    )
    assert service.stdout is not None
    pids = [int(pid) for pid in (await service.stdout.readline()).split()]
    assert len(pids) >= spec.tp
    service.kill()
    await service.wait()
    await assert_gone(pids)


async def test_a_start_that_cannot_be_is_explained(spec, tmp_path):
    for changes, error, words in (
        ({"model_dir": str(tmp_path / "nowhere")}, ModelNotFound, "nowhere"),
        ({"tp": 3}, IllegalParallelism, "tp 3 does not divide 4 heads, 2 kv_heads"),
        ({"device": "cuda:63"}, EngineError, "cuda:63"),
        ({"max_context_tokens": 4096}, ConfigError, "4096 exceeds the model's 2048"),
    ):
        engine = EngineProcess(msgspec.structs.replace(spec, **changes))
        if engine.spec.tp > MOST_RANKS:
            continue
        with pytest.raises(error, match=words):
            await engine.start()
        await assert_gone(engine.pids)
