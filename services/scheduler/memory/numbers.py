"""Properties of a model on which memory depends: the sizes of one rank's part of it. Pure; from
earl.models.slices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from earl.models.slices import rank_parameters
from earl.models.spec import ModelSpec
from earl.models.tp import rank_heads
from services.scheduler.memory.parts import WIDE_BYTES, ceil_div

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """The sizes of a rank under tensor (and pipeline) parallelism.

    hidden, vocab, head_dim as in ModelSpec; layers, heads, kv_heads, intermediate: this rank's. block: shapes
    of one layer's parameters, root: of all others, tied ones once. Where ranks share a key-value head each
    has it; norms and embeddings are every rank's (earl.models.slices).
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    qk_norm: bool
    block: Shapes
    root: Shapes

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, spec: ModelSpec, tp: int = 1, pp: int = 1, *, fused: bool = False) -> ModelNumbers:
        """fused: as engines hold it, with qkv_proj and gate_up_proj. Raises IllegalParallelism."""
        parameters = rank_parameters(spec, 0, tp, fused=fused)
        tensors = {name: tensor for name, tensor in parameters.items() if not tensor.same_as}
        block = tuple(tensor.shape for name, tensor in tensors.items() if name.startswith("model.layers.0."))
        root = tuple(tensor.shape for name, tensor in tensors.items() if not name.startswith("model.layers."))
        heads, kv_heads = rank_heads(spec, tp)
        return cls(
            hidden=spec.hidden,
            layers=ceil_div(spec.layers, pp),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=spec.head_dim,
            intermediate=spec.intermediate // tp,
            vocab=spec.vocab,
            tied=spec.tied,
            qk_norm=spec.qk_norm,
            block=block,
            root=root,
        )

    @property
    def query(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of all keys, or values, of a token."""
        return self.kv_heads * self.head_dim

    def attended(self, device: str, item_bytes: int) -> int:
        """Width of all keys, or values, of a token as attention reads them: repeated for every head where its
        kernel takes equal head counts only (earl.models.packing.repeats_heads)."""
        return self.query if device == "cpu" or item_bytes == WIDE_BYTES else self.key

    def elements(self, dp: int = 1, ranks: int = 1) -> int:
        """Elements of this rank under FSDP2: a block's split over dp ranks, others over `ranks`."""
        return self.layers * elements(self.block, dp) + elements(self.root, ranks)


def elements(shapes: Shapes, dp: int = 1) -> int:
    """Elements of one shard: FSDP2 splits each parameter by rows, the last shards padded."""
    return sum(ceil_div(shape[0], dp) * math.prod(shape[1:]) for shape in shapes)
