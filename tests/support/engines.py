"""The engine contract's parts: a tiny random model, published weights, engines under test.

A suite takes the fixtures by name: `shared = engines.shared`, and so on. EARL_TEST_ENGINES says which
engines it runs against: torch (the default), or what has an environment of its own (`make test-vllm`).
EARL_TEST_DEVICE says on what: cpu (the default) or cuda; with fewer GPUs than an engine needs ranks, tests of
that engine are skipped.
Where engines differ, TRAITS says how: what an engine cannot do is skipped (`needs`), with the reason.
"""

import asyncio
import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.put_tensors import Placed, put_tensors, shard_box
from earl.bus import Bus
from earl.bus.embedded import EmbeddedValkey
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.registry.registry import Registry
from earl.models.module import Decoder
from earl.models.spec import SPECIALS, spec_of
from earl.models.tokenizer import scratch_tokenizer
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.process.client import EngineProcess
from services.rollout.engines.vllm.core import BLOCK_TOKENS
from tests.support.preloaded import preloaded

SELECTED = os.environ.get("EARL_TEST_ENGINES", "torch").split(",")
DEVICE = os.environ.get("EARL_TEST_DEVICE", "cpu")
# Ranks that an engine may have here: on GPUs each takes one.
MOST_RANKS = torch.cuda.device_count() if DEVICE == "cuda" else 64
# Every engine that the suite can run against. vLLM's start is the dear part of it, with two ranks
# most of all: those are tests/contract/test_engine_vllm.py's.
KNOWN: dict[str, dict[str, Any]] = {
    "torch tp=1": {"engine": "torch", "tp": 1},
    # All of the contract holds with drafts, too.
    "torch tp=2": {"engine": "torch", "tp": 2, "drafts": True},
    "vllm tp=1": {"engine": "vllm", "tp": 1, "start_s": 300.0},
    "sglang tp=1": {"engine": "sglang", "tp": 1, "start_s": 300.0},
}
ENGINES = {
    name: fields
    for name, fields in KNOWN.items()
    if fields["engine"] in SELECTED and fields["tp"] <= MOST_RANKS
}
CONFIG: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    # The smallest head that vLLM's attention on CPUs takes.
    "head_dim": 32,
    "max_position_embeddings": 2048,
}
SLOTS, WAITING, CONTEXT = 4, 24, 1024


@dataclass(frozen=True)
class Traits:
    """The properties that the suite may expect of an engine.

    prefix_block_tokens: prefixes are used again in whole blocks of so many tokens. counts_sessions: stats()
    counts the sessions whose KV was evicted, and `retained` are those whose KV is there. reproduces_seeds: a
    request's seed decides its tokens. filters: requests may have them. stop_texts: answers end at texts, too.
    survives_broken_weights: weights that give no finite logits fail requests with EngineError, and the engine
    lives on. sleeps: it returns its memory on a CPU.
    """

    prefix_block_tokens: int = 1
    counts_sessions: bool = True
    reproduces_seeds: bool = True
    filters: bool = True
    stop_texts: bool = True
    survives_broken_weights: bool = True
    sleeps: bool = True


TRAITS = {
    "torch": Traits(),
    "vllm": Traits(prefix_block_tokens=BLOCK_TOKENS, counts_sessions=False, sleeps=False),
    "sglang": Traits(
        counts_sessions=False,
        reproduces_seeds=False,
        filters=False,
        stop_texts=False,
        survives_broken_weights=False,
        sleeps=False,
    ),
}
_ids = itertools.count()


def random_model(seed: int, **changes: Any) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(**CONFIG | changes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
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
            await put_tensors(store, keys[-1], tensors, version)
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
    # Only stop texts need it. Of each word there is one token.
    words = [f"w{number}" for number in range(CONFIG["vocab_size"] - len(SPECIALS))]
    scratch_tokenizer(words).save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module", params=ENGINES)
def spec(request, model_dir, run) -> EngineSpec:
    url, name, config, _ = run
    return EngineSpec(
        name="under-test",
        model_dir=str(model_dir),
        device=DEVICE,
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
    with preloaded():
        await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def weights(run) -> Weights:
    return run[3]


@pytest_asyncio.fixture(loop_scope="module")
async def reloaded(shared, weights):
    """`shared` for a test that loads other weights into it: afterwards it has MODELS[0]'s again."""
    yield shared
    version, keys = await weights.publish(MODELS[0])
    await shared.load_weights(version, keys)
    await weights.remove(keys)


@pytest_asyncio.fixture(loop_scope="module")
async def own(spec):
    """Makes engines of a test's own: own(field=value, ...)."""
    engines = []

    async def make(**changes) -> EngineProcess:
        engine = EngineProcess(msgspec.structs.replace(spec, **changes))
        engines.append(engine)
        with preloaded():
            await engine.start()
        return engine

    yield make
    for engine in engines:
        await engine.stop()


def needs(engine: EngineProcess, trait: str, reason: str) -> None:
    """Skips the test if the engine lacks the trait. reason: why it does."""
    if not getattr(TRAITS[engine.spec.engine], trait):
        pytest.skip(f"{engine.spec.engine}: {trait} is False: {reason}")


def needs_ranks(ranks: int) -> None:
    """Skips the test where an engine cannot have so many ranks."""
    if ranks > MOST_RANKS:
        pytest.skip(f"an engine of tp {ranks} needs {ranks} GPUs, and there are {MOST_RANKS}")


def steady(engine: EngineProcess) -> dict[str, Any]:
    """Fields of `ask` that make two requests of equal seed say the same on this engine."""
    return {} if TRAITS[engine.spec.engine].reproduces_seeds else {"temperature": 0.0}


def whole_blocks(engine: EngineProcess, tokens: int) -> int:
    """Returns how much of a prefix of `tokens` the engine can use again."""
    block_tokens = TRAITS[engine.spec.engine].prefix_block_tokens
    return tokens // block_tokens * block_tokens


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


def ask(ids: list[int], new: int = 8, **fields) -> GenerateRequest:
    return GenerateRequest(request_id=f"r{next(_ids)}", ids=ids, max_new_tokens=new, **fields)


def recompute(model: Any, ids: list[int], new: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of `new` after `ids` by the trainer's packed forward."""
    spec = spec_of(model.config.to_dict())
    decoder = Decoder(spec)
    decoder.load_state_dict({name: model.state_dict()[name] for name in spec.shapes()})
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
    async with asyncio.timeout(60):
        for pid in pids:
            # Not our children after their parent's death: there is nothing to wait on but the table.
            while _alive(pid):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
