"""Four ranks of a decoder sharded by FSDP2 over tensor parallelism that publish it and wait.

Started with torchrun's environment and one JSON argument; says "published" on stdout, ends with stdin.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from earl.bus import Bus
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.registry import Registry
from earl.dispatch.store import TensorStore
from earl.models.module import Decoder, initialise
from earl.models.spec import ModelSpec
from services.trainer.group import Group, leave
from services.trainer.parallel import Shard, shards_of
from services.trainer.publish import WeightSlots, arena_bytes
from services.trainer.side import Side

MESH = (2, 2)
# What 2 x 2 ranks cut unevenly: 7 rows of a head's 14, 11 of 22 inner ones, 29 of the vocabulary.
SPEC = ModelSpec("qwen2", 24, 2, 4, 2, 14, 22, 29, tied=True, qkv_bias=True)
SEED = 5
CALL_S = 30.0
# Trainer's name -> the dtype in which it publishes.
PUBLISHED = {"wide": "float32", "narrow": "bfloat16"}


def decoder() -> Decoder:
    """The same on every rank and in every process; biases too are random."""
    made = Decoder(SPEC)
    initialise(made, SEED)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    return made


@dataclass
class Sharded:
    """A module's shards as WeightSlots takes them."""

    model_shards: tuple[Shard, ...]

    def weights(self) -> Iterator[tuple[Shard, torch.Tensor]]:
        for shard in self.model_shards:
            yield shard, shard.local


def shard(module: Decoder) -> nn.Module:
    mesh = init_device_mesh("cpu", MESH, mesh_dim_names=("dp", "tp"))
    rows, columns = ColwiseParallel(), RowwiseParallel()
    cut: dict[str, ParallelStyle] = {f"self_attn.{letter}_proj": rows for letter in "qkv"}
    cut |= {"self_attn.o_proj": columns, "mlp.down_proj": columns}
    cut |= {"mlp.gate_proj": rows, "mlp.up_proj": rows}
    for block in module.model.layers:
        parallelize_module(block, mesh["tp"], cut)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(module, mesh=mesh["dp"])
    return module


def main(role: dict[str, str]) -> None:
    torch.set_num_threads(1)
    group, side = Group("cpu"), Side()
    policy = Sharded(tuple(shards_of(shard(decoder()))))
    bus = side.run(Bus.connect(role["redis"], "mesh"), CALL_S)
    registry = Registry(bus.redis, bus.prefix, 60.0)
    size_bytes = sum(arena_bytes(policy.model_shards, dtype) for dtype in PUBLISHED.values())
    opening = TensorStore.open(
        registry,
        DataPlaneConfig(arena_dir=role["arenas"]),
        Path(role["arenas"]),
        f"trainer-{group.rank}",
        incarnation=group.rank + 1,
        size_bytes=size_bytes,
    )
    store = side.run(opening, CALL_S)
    for name, dtype in PUBLISHED.items():
        slots = WeightSlots(side, store, registry, bus, group, policy, name=name, dtype=dtype, lease_s=5.0)
        slots.publish(1)
    print("published", flush=True)
    sys.stdin.read()
    side.run(store.close(), CALL_S)
    side.run(bus.close(), CALL_S)
    side.close()
    group.close()
    leave(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
