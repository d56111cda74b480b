"""Which degrees of tensor parallelism a model allows. Pure. What each rank then holds: earl.models.slices."""

from __future__ import annotations

from earl.errors import IllegalParallelism
from earl.models.spec import ModelSpec


def legal_tp(spec: ModelSpec) -> list[int]:
    """Degrees that divide heads and the intermediate size, and give every rank whole kv_heads, ascending.

    Beyond kv_heads, a multiple of it: then several ranks hold the same one.
    """
    return [
        tp
        for tp in range(1, spec.heads + 1)
        if spec.heads % tp == 0
        and spec.intermediate % tp == 0
        and (spec.kv_heads % tp == 0 or tp % spec.kv_heads == 0)
    ]


def check_tp(spec: ModelSpec, tp: int) -> None:
    """Raises IllegalParallelism, naming the model's numbers and the degrees that it allows."""
    legal = legal_tp(spec)
    if tp not in legal:
        raise IllegalParallelism(
            f"tp {tp} does not divide {spec.heads} heads, {spec.kv_heads} kv_heads and an intermediate size "
            f"of {spec.intermediate}",
            f"use tp {' or '.join(map(str, legal))}",
        )


def rank_heads(spec: ModelSpec, tp: int) -> tuple[int, int]:
    """(heads, kv_heads) of each rank. Raises IllegalParallelism."""
    check_tp(spec, tp)
    return spec.heads // tp, max(1, spec.kv_heads // tp)
