"""What every engine promises (services/rollout/engines/base.py), on a tiny random model."""

import asyncio
import itertools
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from earl.bus import Bus
from earl.bus.embedded import EmbeddedValkey
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.layout import shard_box
from earl.dispatch.registry import Registry
from earl.dispatch.store import Placed, TensorStore
from earl.errors import (
    ConfigError,
    ContextTooLong,
    DataPlaneError,
    EngineBusy,
    EngineError,
    EngineLost,
    IllegalParallelism,
    ModelNotFound,
    ReshapeRefused,
    VersionGone,
    WeightsIncomplete,
)
from earl.models.module import Decoder
from earl.models.spec import spec_of
from services.rollout.engines.base import EngineSpec, GenerateRequest
from services.rollout.engines.client import EngineProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENGINES: dict[str, dict[str, Any]] = {
    "torch tp=1": {"engine": "torch", "tp": 1},
    "torch tp=2": {"engine": "torch", "tp": 2},
}
CONFIG: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
SLOTS, WAITING, CONTEXT = 4, 24, 1024
_ids = itertools.count()


def random_model(seed: int) -> Any:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**CONFIG), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


MODELS = [random_model(seed) for seed in range(2)]


class Weights:
    """Publishes MODELS as versions 1, 2, ...: rows of every matrix cut over two owners."""

    def __init__(self, registry: Registry, stores: list[TensorStore]) -> None:
        self._registry, self._stores = registry, stores
        self._versions = itertools.count(1)

    async def publish(self, model: Any, without: str = "") -> tuple[int, list[str]]:
        version = next(self._versions)
        keys = []
        for owner, store in enumerate(self._stores):
            tensors: dict[str, np.ndarray | Placed] = {}
            for name, tensor in model.state_dict().items():
                box = shard_box(tensor.shape, 0, owner, len(self._stores))
                part = np.ascontiguousarray(tensor.numpy()[box.slices()])
                if name != without:
                    tensors[name] = Placed(part, tuple(tensor.shape), box)
            keys.append(f"weights/{version}/trainer-{owner}")
            await store.put(keys[-1], tensors, version)
        return version, keys

    async def remove(self, keys: list[str]) -> None:
        for key, store in zip(keys, self._stores, strict=True):
            await store.remove([key])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory):
    """(redis url, run's name, data plane configuration, Weights)."""
    directory = tmp_path_factory.mktemp("run")
    valkey = EmbeddedValkey()
    url = await valkey.start(directory / "redis")
    config = DataPlaneConfig()
    bus = await Bus.connect(url, "engines")
    registry = Registry(bus.redis, bus.prefix, config.descriptor_lease_s)
    stores = [
        await TensorStore.open(
            registry, config, directory / "arenas", f"trainer-{owner}", incarnation=1, size_bytes=1 << 20
        )
        for owner in range(2)
    ]
    yield url, "engines", config, Weights(registry, stores)
    for store in stores:
        await store.close()
    await bus.close()
    await valkey.stop()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model")
    MODELS[0].save_pretrained(path)
    return path


@pytest.fixture(scope="module", params=ENGINES)
def spec(request, model_dir, run) -> EngineSpec:
    url, name, config, _ = run
    return EngineSpec(
        name="under-test",
        model_dir=str(model_dir),
        device="cpu",
        max_sequences=SLOTS,
        max_waiting=WAITING,
        max_context_tokens=CONTEXT,
        redis_url=url,
        run=name,
        data_plane=config.model_dump_json(),
        **ENGINES[request.param],
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(spec):
    """One engine for the tests that leave it as it was."""
    engine = EngineProcess(spec)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def weights(run) -> Weights:
    return run[3]


@pytest_asyncio.fixture(loop_scope="module")
async def own(spec):
    """Makes engines of a test's own: own(field=value, ...)."""
    engines = []

    async def make(**changes) -> EngineProcess:
        engine = EngineProcess(msgspec.structs.replace(spec, **changes))
        engines.append(engine)
        await engine.start()
        return engine

    yield make
    for engine in engines:
        await engine.stop()


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


def ask(ids: list[int], new: int = 8, **fields) -> GenerateRequest:
    return GenerateRequest(request_id=f"r{next(_ids)}", ids=ids, max_new_tokens=new, **fields)


def recompute(model: Any, ids: list[int], new: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of `new` after `ids` by the trainer's packed forward."""
    decoder = Decoder(spec_of(LlamaConfig(**CONFIG).to_dict()))
    decoder.load_state_dict(model.state_dict())
    tokens = torch.tensor(ids + new)
    rows = torch.arange(len(ids) - 1, len(tokens) - 1)
    with torch.no_grad():
        logprobs, _ = decoder(
            tokens, torch.arange(len(tokens)), [len(tokens)], tokens[rows + 1], temperature, rows
        )
    return logprobs


def assert_close(ours: list[float], wanted: Any) -> None:
    assert np.abs(np.asarray(ours) - np.asarray(wanted)).max() < 1e-4


async def assert_gone(pids: list[int]) -> None:
    async with asyncio.timeout(5):
        for pid in pids:
            # Not our children after their parent's death: there is nothing to wait on but the table.
            while _alive(pid):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- what is sampled ------------------------------------------------------------------------------


async def test_greedy_equals_transformers(shared):
    ids = prompt(11)
    generation = await shared.generate_all(ask(ids, 16, temperature=0.0))
    with torch.no_grad():
        wanted = MODELS[0].generate(
            torch.tensor([ids]), max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, len(ids) :]
    assert generation.ids == wanted.tolist()
    assert generation.finish == "length" and generation.versions == [0] * 16


async def test_logprobs_are_of_the_tempered_distribution(shared):
    requests = [ask(prompt(5 + 7 * n, n), 12, temperature=0.5 + 0.5 * n, seed=n) for n in range(4)]
    generations = await asyncio.gather(*map(shared.generate_all, requests))
    for request, generation in zip(requests, generations, strict=True):
        assert_close(
            generation.logprobs, recompute(MODELS[0], request.ids, generation.ids, request.temperature)
        )


async def test_a_seed_reproduces_whatever_it_is_batched_with(shared):
    def request(seed: int) -> GenerateRequest:
        return ask(prompt(9), 20, seed=seed)

    alone = [await shared.generate_all(request(seed)) for seed in range(3)]
    assert len({tuple(generation.ids) for generation in alone}) == 3
    others = [ask(prompt(3 + 5 * n, n), 5 + n, seed=100 + n) for n in range(9)]
    mixed = await asyncio.gather(
        *(
            shared.generate_all(r)
            for pair in zip(others[:3], map(request, range(3)), strict=True)
            for r in pair
        ),
        *(shared.generate_all(r) for r in others[3:]),
    )
    for ours, wanted in zip(mixed[1:6:2], alone, strict=True):
        assert ours.ids == wanted.ids
        assert_close(ours.logprobs, wanted.logprobs)


async def test_samples_follow_the_distribution(own):
    engine = await own(max_sequences=256, max_context_tokens=8, max_waiting=4096)
    ids = prompt(4)
    generations = await asyncio.gather(*(engine.generate_all(ask(ids, 1, seed=seed)) for seed in range(4000)))
    found = np.bincount([generation.ids[0] for generation in generations], minlength=61) / 4000
    with torch.no_grad():
        wanted = MODELS[0](torch.tensor([ids])).logits[0, -1].softmax(-1).numpy()
    # Half the L1 distance of 4,000 draws over 61 outcomes is about 0.05.
    assert 0.5 * np.abs(found - wanted).sum() < 0.1


async def test_stop_ids_end_a_generation(shared, own):
    free = await shared.generate_all(ask(prompt(6), 12, seed=4))
    stop = free.ids[5]
    cut = await shared.generate_all(ask(prompt(6), 12, seed=4, stop_ids=[60, 59, 58, stop]))
    at = free.ids.index(stop)
    assert cut.ids == free.ids[: at + 1] and cut.finish == "stop"
    engine = await own(stop_ids=(stop,))
    assert (await engine.generate_all(ask(prompt(6), 12, seed=4))).ids == cut.ids


async def test_a_stream_says_the_same(shared):
    request = ask(prompt(6), 12, seed=4)
    chunks = [chunk async for chunk in shared.generate(request)]
    whole = await shared.generate_all(ask(prompt(6), 12, seed=4))
    assert [token for chunk in chunks for token in chunk.ids] == whole.ids
    assert [chunk.finish for chunk in chunks] == [""] * (len(chunks) - 1) + ["length"]


# --- sessions, slots and the queue ----------------------------------------------------------------


async def test_a_session_reuses_its_prefix_and_changes_nothing(shared):
    async def episode(session: str) -> tuple[list[int], list[float], int]:
        ids, logprobs, reused = [], [], 0
        for turn in range(4):
            ids += prompt(10, turn)
            generation = await shared.generate_all(ask(ids, 4, seed=7, session=session))
            ids, reused = ids + generation.ids, reused + generation.reused_tokens
            logprobs += generation.logprobs
        await shared.release(session)
        return ids, logprobs, reused

    wanted, logprobs, none = await episode("")
    ours, again, reused = await episode("episode")
    assert ours == wanted and none == 0
    assert_close(again, logprobs)
    # Everything but each turn's last token, which was sampled and not yet computed.
    assert reused == (14 - 1) + (28 - 1) + (42 - 1)
    assert (await shared.stats()).retained == 0


async def test_a_session_may_go_back(shared):
    ids = prompt(12)
    first = await shared.generate_all(ask(ids, 4, seed=1, session="back"))
    changed = [*ids[:8], 1, 2, 3]
    second = await shared.generate_all(ask(changed, 4, seed=1, session="back"))
    assert second.reused_tokens == 8
    assert_close(second.logprobs, recompute(MODELS[0], changed, second.ids))
    same = await shared.generate_all(ask(changed, 4, seed=1, session="back"))
    assert same.ids == second.ids and same.reused_tokens == len(changed) - 1
    await shared.release("back")
    assert first.reused_tokens == 0


async def test_idle_sessions_make_room(shared):
    before = (await shared.stats()).evicted_sessions
    for n in range(SLOTS + 2):
        await shared.generate_all(ask(prompt(6, n), 2, session=f"idle-{n}"))
    stats = await shared.stats()
    assert stats.retained == SLOTS and stats.evicted_sessions == before + 2
    # The first is gone, the last is there.
    last = await shared.generate_all(ask(prompt(6, SLOTS + 1), 2, session=f"idle-{SLOTS + 1}"))
    first = await shared.generate_all(ask(prompt(6, 0), 2, session="idle-0"))
    assert (last.reused_tokens, first.reused_tokens) == (5, 0)
    for n in range(SLOTS + 2):
        await shared.release(f"idle-{n}")
    assert (await shared.stats()).kv_used_fraction == 0


async def test_requests_queue_beyond_the_slots_and_are_refused_beyond_the_queue(shared):
    await shared.pause()
    tasks = [
        asyncio.create_task(shared.generate_all(ask(prompt(5, n), 3, seed=n))) for n in range(WAITING + 2)
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert (await shared.stats()).waiting == WAITING
    await shared.resume()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [r for r in results if isinstance(r, BaseException)]
    assert len(refused) == 2 and all(isinstance(r, EngineBusy) for r in refused)
    for n, generation in enumerate(results[:WAITING]):
        assert not isinstance(generation, BaseException)
        assert generation.ids == (await shared.generate_all(ask(prompt(5, n), 3, seed=n))).ids


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (ask(prompt(CONTEXT - 3), 4), ContextTooLong, "1021 tokens and 4"),
        (ask([], 4), EngineError, "0 tokens"),
        (ask([1], 0), EngineError, "0 new"),
        (ask([1, 61], 4), EngineError, "token id 61"),
        (ask([1, -1], 4), EngineError, "token id -1"),
        (ask([1], 4, temperature=float("nan")), EngineError, "temperature nan"),
    ],
)
async def test_bad_requests_are_refused_alone(shared, request_, error, words):
    good = asyncio.create_task(shared.generate_all(ask(prompt(5), 4)))
    with pytest.raises(error, match=words) as caught:
        await shared.generate_all(request_)
    assert caught.value.remedy
    with pytest.raises(error):
        async for _ in shared.generate(request_):
            pass
    assert len((await good).ids) == 4


async def test_the_whole_context_is_usable(shared):
    ids = prompt(CONTEXT - 4)
    generation = await shared.generate_all(ask(ids, 4, seed=3))
    assert len(generation.ids) == 4
    assert_close(generation.logprobs, recompute(MODELS[0], ids, generation.ids))


# --- interruption ---------------------------------------------------------------------------------


async def test_abort_returns_what_there_is(shared):
    request = ask(prompt(6), 900, seed=5)
    whole = await shared.generate_all(ask(prompt(6), 40, seed=5))
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
    wanted = await shared.generate_all(ask(prompt(6), 300, seed=8))
    stream = shared.generate(ask(prompt(6), 300, seed=8))
    chunks = [await anext(stream)]
    await shared.pause(keep=True)
    before = await shared.stats()
    later = asyncio.create_task(shared.generate_all(ask(prompt(4), 2)))
    after = await shared.stats()
    assert before.paused and after.steps == before.steps
    await shared.resume()
    chunks += [chunk async for chunk in stream]
    assert [token for chunk in chunks for token in chunk.ids] == wanted.ids
    assert len((await later).ids) == 2


async def test_pause_without_keep_ends_requests(shared):
    tasks = [asyncio.create_task(shared.generate_all(ask(prompt(6, n), 1000))) for n in range(SLOTS + 2)]
    await shared.stats()
    await shared.pause(keep=False)
    assert {generation.finish for generation in await asyncio.gather(*tasks)} == {"abort"}
    await shared.resume()


# --- weights --------------------------------------------------------------------------------------


async def test_sequences_in_flight_continue_with_new_weights(own, weights):
    engine = await own(kv_on_update="recompute")
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
    assert versions == sorted(versions) and set(versions) == {0, version}
    old = versions.count(0)
    assert 3 <= old < len(got)
    assert_close(logprobs[:old], recompute(MODELS[0], ids, got[:old]))
    # The whole prefix was computed again with the new weights.
    assert_close(logprobs[old:], recompute(MODELS[1], ids + got[:old], got[old:]))
    stats = await engine.stats()
    assert stats.version == version and sum(t.size_bytes for t in stats.transfers) == staged.size_bytes
    await weights.remove(keys)


async def test_kept_kv_is_the_old_versions(own, weights):
    engine = await own(kv_on_update="keep")
    version, keys = await weights.publish(MODELS[1])
    ids = prompt(20)
    first = await engine.generate_all(ask(ids, 4, seed=2, session="kept"))
    report = await engine.load_weights(version, keys)
    assert report.version == version and report.size_bytes > 0
    second = await engine.generate_all(ask(ids + first.ids, 4, seed=2, session="kept"))
    assert second.reused_tokens == 23 and second.versions == [version] * 4
    fresh = await engine.generate_all(ask(ids, 4, seed=2))
    assert fresh.reused_tokens == 0
    assert_close(fresh.logprobs, recompute(MODELS[1], ids, fresh.ids))
    await weights.remove(keys)


async def test_a_load_that_fails_leaves_the_old_version(own, weights):
    engine = await own()
    gone, keys = await weights.publish(MODELS[1])
    await weights.remove(keys)
    with pytest.raises(VersionGone):
        await engine.load_weights(gone, keys)
    name = "model.layers.1.mlp.up_proj.weight"
    partial, keys = await weights.publish(MODELS[1], without=name)
    with pytest.raises(DataPlaneError, match=name):
        await engine.load_weights(partial, keys)
    with pytest.raises(WeightsIncomplete, match=f"not {partial}"):
        await engine.commit(partial)
    generation = await engine.generate_all(ask(prompt(6), 4))
    assert generation.versions == [0] * 4
    assert_close(generation.logprobs, recompute(MODELS[0], prompt(6), generation.ids))
    await weights.remove(keys)


async def test_without_weights_nothing_is_generated(own, weights):
    engine = await own(load_initial=False)
    with pytest.raises(WeightsIncomplete):
        await engine.generate_all(ask(prompt(6), 4))
    version, keys = await weights.publish(MODELS[1])
    await engine.load_weights(version, keys)
    generation = await engine.generate_all(ask(prompt(6), 4))
    assert_close(generation.logprobs, recompute(MODELS[1], prompt(6), generation.ids))
    await weights.remove(keys)


# --- life and death -------------------------------------------------------------------------------


async def test_reshape_is_refused_where_it_cannot_be_done(shared):
    assert not shared.caps.live_reshape and shared.caps.legal_tp == (1, 2)
    with pytest.raises(ReshapeRefused):
        await shared.reshape(1)


async def test_an_idle_engine_uses_no_cpu(shared):
    await shared.generate_all(ask(prompt(6), 4))
    processes = [psutil.Process(pid) for pid in shared.pids]
    before = [sum(process.cpu_times()[:2]) for process in processes]
    await asyncio.sleep(1.0)
    used = [sum(process.cpu_times()[:2]) - b for process, b in zip(processes, before, strict=True)]
    assert max(used) <= 0.02


async def test_death_fails_every_call_and_leaves_no_process(own, spec):
    for victim in range(spec.tp):
        engine = await own()
        await engine.pause()
        calls: list[Any] = [asyncio.create_task(engine.generate_all(ask(prompt(5, n), 9))) for n in range(3)]
        calls.append(asyncio.create_task(anext(engine.generate(ask(prompt(5), 9)))))
        calls.append(asyncio.create_task(engine.wait_lost()))
        await engine.stats()
        psutil.Process(engine.pids[victim]).send_signal(signal.SIGKILL)
        async with asyncio.timeout(2):
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
from services.rollout.engines.base import EngineSpec
from services.rollout.engines.client import EngineProcess

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
    assert len(pids) == spec.tp
    service.kill()
    await service.wait()
    await assert_gone(pids)


async def test_a_start_that_cannot_be_is_explained(spec, tmp_path):
    for changes, error, words in (
        ({"model_dir": str(tmp_path / "nowhere")}, ModelNotFound, "nowhere"),
        ({"tp": 3}, IllegalParallelism, "tp 3 does not divide 4 heads, 2 kv_heads"),
        ({"device": "cuda:7"}, EngineError, "cuda:7"),
        ({"max_context_tokens": 4096}, ConfigError, "4096 exceeds the model's 2048"),
    ):
        engine = EngineProcess(msgspec.structs.replace(spec, **changes))
        with pytest.raises(error, match=words):
            await engine.start()
        await assert_gone(engine.pids)
