"""The layout of each published tensor over a trainer's ranks, in any parallelism. Pure.

    blocks    tp slices first, FSDP2's rows of each slice over the other ranks next
    all else  FSDP2's rows over all ranks

Where several tp ranks hold the same key-value head, or all of them the same norm, a dimension of replicas is
between the two. dp and cp change nothing: FSDP2 shards over both alike.
"""

from __future__ import annotations

from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import Placement
from earl.models.slices import tp_shard
from earl.models.spec import ModelSpec

# Where a decoder's blocks are: model.layers.<n>.
BLOCKS = "model.layers."


def shard_layout(name: str, shape: tuple[int, ...], spec: ModelSpec, tp: int, ranks: int) -> MeshLayout:
    """The layout of published tensor `name`, whole `shape`, over so many ranks, `tp` of which share a model.

    Owners are named by number: layouts that differ in owners alone are one class.
    Example: a norm of shape (8,), tp 2 of 4 ranks → mesh (2, 2), placements replicate, shard 0.
    """
    steps: list[tuple[int, Placement]] = [(ranks, ("shard", 0))]
    if name.startswith(BLOCKS):
        sharding = tp_shard(name, spec, tp)
        sliced: list[tuple[int, Placement]] = [(tp, ("replicate",))]
        if sharding is not None:
            sliced = [(sharding.parts, ("shard", sharding.dim)), (sharding.replicas, ("replicate",))]
        steps = [step for step in sliced if step[0] > 1] + [(ranks // tp, ("shard", 0))]
    sizes, placements = zip(*steps, strict=True)
    return MeshLayout(shape, sizes, placements, tuple(map(str, range(ranks))))


def place_of(name: str, rank: int, tp: int, ranks: int) -> int:
    """The place of a rank on the mesh of `shard_layout`, row-major."""
    return rank % tp * (ranks // tp) + rank // tp if name.startswith(BLOCKS) else rank
