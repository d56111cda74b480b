"""The model whose parallelism changes while it is used, published as a trainer publishes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.put_tensors import Placed, put_tensors
from earl.bus import Bus
from earl.bus.embedded import EmbeddedValkey
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.layout.box import Box
from earl.dispatch.memory.allocator import occupied, rounded
from earl.dispatch.memory.arena_file import arena_directory
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.registry.registry import Registry
from earl.models.spec import ModelSpec, spec_of
from earl.models.weights import Checkpoint

RUN = "bench"
HEADS, KV_HEADS = 8, 4


@dataclass(frozen=True, slots=True)
class Published:
    """The weights that were published, where engines find them."""

    redis_url: str
    data_plane: str
    # For the arenas of others, too.
    arena_dir: Path
    version: int
    keys: tuple[str, ...]


def config_of(layers: int, hidden: int, vocabulary: int, positions: int) -> dict:
    """config.json of a Llama with 8 heads, 4 of keys and values."""
    return {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": hidden * 11 // 4,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": hidden // HEADS,
        "max_position_embeddings": positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def write_model(directory: Path, config: dict) -> ModelSpec:
    """A checkpoint with random weights in float32; returns its shape."""
    import torch
    from safetensors.torch import save_file

    spec = spec_of(config)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02
        for name, shape in spec.shapes().items()
    }
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return spec


@asynccontextmanager
async def published(model: Path, spec: ModelSpec, directory: Path) -> AsyncIterator[Published]:
    """Version 1 of the weights on the data plane of a Valkey of its own."""
    async with AsyncExitStack() as stack:
        valkey = EmbeddedValkey()
        stack.push_async_callback(valkey.stop)
        url = await valkey.start(directory / "valkey")
        bus = await Bus.connect(url, RUN)
        stack.push_async_callback(bus.close)
        config = DataPlaneConfig()
        arenas = arena_directory(config, directory)
        shapes = spec.shapes()
        size_bytes = sum(rounded(int(np.prod(shape)) * 4) for shape in shapes.values())
        store = await TensorStore.open(
            Registry(bus.redis, bus.prefix, config.descriptor_lease_s),
            config,
            arenas,
            "trainer-0",
            incarnation=1,
            size_bytes=occupied(size_bytes),
        )
        stack.push_async_callback(store.close)
        checkpoint = Checkpoint(model)
        tensors = {
            name: Placed(checkpoint.read(name, Box.whole(shape)).numpy(), shape, Box.whole(shape))
            for name, shape in shapes.items()
        }
        key = "weights/1/trainer-0"
        await put_tensors(store, key, tensors, 1)
        yield Published(url, config.model_dump_json(), arenas, 1, (key,))
