"""Four ranks of a trainer in one cut that publish its weights and wait.

Run by tests.support.processes; it sends "published" and ends when its pipe does.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import torch

from earl.bus import Bus
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.registry.registry import Registry
from earl.models.module import Decoder, initialise
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.publish.weight_slots import WeightSlots, arena_bytes, slot_bytes
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.process_group import Group, leave
from services.trainer.ranks.rank_mesh import RankMesh

RANKS = 4
# What the ranks cut unevenly: 7 rows of a head's 14, 11 of 22 inner ones, 29 of the vocabulary. Four tp ranks
# share two key-value heads.
SPEC = ModelSpec("qwen2", 24, 2, 4, 2, 14, 44, 29, tied=True, qkv_bias=True)
SEED = 5
CALL_S = 30.0
# Trainer's name -> the cut and the dtype in which it publishes.
PUBLISHED = {
    "wide": ("dp2·tp2", "float32"),
    "narrow": ("tp2·cp2", "bfloat16"),
    "shared": ("tp4", "float32"),
}


def decoder() -> Decoder:
    """The same on every rank and in every process; biases too are random."""
    made = Decoder(SPEC)
    initialise(made, SEED)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    return made


@torch.no_grad()
def policy_in(group: Group, layout: str) -> ShardedPolicy:
    policy = ShardedPolicy(SPEC, RankMesh(group, Parallelism.parse(layout), SPEC), "float32")
    whole = dict(decoder().named_parameters())
    for shard in policy.shards:
        if shard.box.size:
            shard.local.copy_(whole[shard.name][shard.box.slices()])
    return policy


def main(pipe: Connection, role: dict[str, str]) -> None:
    """role: redis and arenas, where they are."""
    torch.set_num_threads(1)
    group, side = Group("cpu"), IoThread()
    policies = {name: policy_in(group, layout) for name, (layout, _) in PUBLISHED.items()}
    bus = side.run(Bus.connect(role["redis"], "mesh"), CALL_S)
    registry = Registry(bus.redis, bus.prefix, 60.0)
    size_bytes = sum(
        arena_bytes(slot_bytes(policies[name].model_shards, dtype)) for name, (_, dtype) in PUBLISHED.items()
    )
    opening = TensorStore.open(
        registry,
        DataPlaneConfig(arena_dir=role["arenas"]),
        Path(role["arenas"]),
        f"trainer-{group.rank}",
        incarnation=group.rank + 1,
        size_bytes=size_bytes,
    )
    store = side.run(opening, CALL_S)
    for name, (_, dtype) in PUBLISHED.items():
        policy = policies[name]
        slots = WeightSlots(side, store, registry, bus, group, policy, name=name, dtype=dtype, lease_s=5.0)
        slots.publish(1)
        slots.settle()
    pipe.send("published")
    # Until the test hangs up.
    pipe.poll(None)
    side.run(store.close(), CALL_S)
    side.run(bus.close(), CALL_S)
    side.close()
    group.close()
    leave(0)
