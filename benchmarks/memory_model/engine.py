"""Torch engines that generate, in processes of their own, as a rollout worker runs them; and their peaks.

trainer's stand-in: random weights in an arena ─► engine loads them over the data plane, twice
    ─► all requests at once, each up to the context's length ─► peak of every rank
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np

from benchmarks.memory_model.cases import MemoryCase
from benchmarks.memory_model.measured import peak_bytes
from benchmarks.put_tensors import put_tensors
from earl.bus import Bus
from earl.bus.embedded import EmbeddedValkey
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.registry.registry import Registry
from earl.models.spec import ModelSpec
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.process.client import EngineProcess

NEW_TOKENS = 8
RANDOM_NUMBERS = (1 << 20) + 7
LOAD_S = 60.0
# Versions that are loaded: the second one finds the buffers and what the first one left.
VERSIONS = (1, 2)


async def measure(case: MemoryCase) -> int:
    """Private bytes that the largest rank took since its start."""
    config, spec, degrees = case.config, case.spec, case.degrees
    rollout = config.rollout
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        arenas = stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-", dir="/dev/shm"))
        (directory / "config.json").write_text(json.dumps(checkpoint_config(spec)))
        valkey = EmbeddedValkey()
        stack.push_async_callback(valkey.stop)
        url = await valkey.start(directory / "redis")
        bus = await Bus.connect(url, "memory")
        stack.push_async_callback(bus.close)
        plane = DataPlaneConfig(arena_dir=arenas)
        registry = Registry(bus.redis, bus.prefix, plane.descriptor_lease_s)
        tensors = random_weights(spec, config.model.weight_dtype)
        size = len(VERSIONS) * sum(array.nbytes for array in tensors.values())
        store = await TensorStore.open(
            registry,
            plane,
            Path(arenas),
            "trainer-0",
            incarnation=1,
            size_bytes=size + size // 4 + (16 << 20),
        )
        stack.push_async_callback(store.close)
        engine = EngineProcess(
            EngineSpec(
                name="measured",
                model_dir=str(directory),
                tp=degrees.tp,
                device=case.device,
                threads=rollout.threads or 1,
                dtype=config.rollout_dtype,
                max_sequences=rollout.max_sequences,
                max_context_tokens=rollout.max_context_tokens,
                kv_tokens=rollout.kv_tokens,
                load_initial=False,
                redis_url=url,
                run="memory",
                data_plane=plane.model_dump_json(),
                start_s=120.0,
            )
        )
        await engine.start()
        stack.push_async_callback(engine.stop)
        for version in VERSIONS:
            key = f"weights/{version}/trainer-0"
            await put_tensors(store, key, tensors, version)
            await engine.load_weights(version, [key], LOAD_S)
            await store.remove([key])
        await asyncio.gather(*(engine.generate_all(request) for request in requests(case)))
        if case.device == "cuda":
            # The whole device's: its allocator gives nothing back. The context is in it.
            memory = (await engine.stats()).memory
            return memory.used_bytes if memory is not None else 0
        return max(map(peak_bytes, engine.pids))


def requests(case: MemoryCase) -> list[GenerateRequest]:
    """One engine's share of the pool's sequences; they share nothing, and end at the context's length."""
    prompt, vocabulary = case.context_tokens - NEW_TOKENS, case.spec.vocab
    return [
        GenerateRequest(
            request_id=f"r{number}",
            ids=np.random.default_rng(number).integers(0, vocabulary, prompt).tolist(),
            max_new_tokens=NEW_TOKENS,
        )
        for number in range(-(-case.concurrency // case.degrees.dp))
    ]


def random_weights(spec: ModelSpec, dtype: str) -> dict[str, np.ndarray]:
    """A whole model as a trainer publishes it: small numbers, bfloat16 as its bits."""
    block, weights = np.random.default_rng(0).standard_normal(RANDOM_NUMBERS, np.float32), {}
    for name, shape in spec.shapes().items():
        # Repeated: a billion of them would take longer than what is measured.
        values = np.resize(block, shape) * np.float32(0.02)
        if len(shape) == 1:
            values[:] = 1.0
        if dtype == "bfloat16":
            values = (values.view(np.uint32) >> 16).astype(numpy_dtype(dtype))
        weights[name] = values
    return weights


def checkpoint_config(spec: ModelSpec) -> dict[str, object]:
    return {
        "model_type": spec.family,
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate,
        "vocab_size": spec.vocab,
        "tie_word_embeddings": spec.tied,
        "max_position_embeddings": spec.max_positions,
    }
