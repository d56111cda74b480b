"""Which slice of each named tensor a tensor-parallel rank holds. Pure: numbers in, boxes out.

Queries, keys, values, gate and up are cut by rows (whole heads), o and down by columns; everything
else, the vocabulary too, is held by every rank.
"""

from __future__ import annotations

import math

from earl.dispatch.layout import Box
from earl.errors import IllegalParallelism
from earl.models.spec import ModelSpec

_ROWS = ("q_proj.", "k_proj.", "v_proj.", "gate_proj.", "up_proj.")
_COLUMNS = ("o_proj.weight", "down_proj.weight")


def legal_tp(spec: ModelSpec) -> list[int]:
    """Degrees that divide heads, kv_heads and the intermediate size, ascending."""
    common = math.gcd(spec.heads, spec.kv_heads, spec.intermediate)
    return [tp for tp in range(1, common + 1) if common % tp == 0]


def check_tp(spec: ModelSpec, tp: int) -> None:
    """Raises IllegalParallelism, naming the model's numbers and the degrees that it allows."""
    legal = legal_tp(spec)
    if tp not in legal:
        raise IllegalParallelism(
            f"tp {tp} does not divide {spec.heads} heads, {spec.kv_heads} kv_heads and an intermediate size "
            f"of {spec.intermediate}",
            f"use tp {' or '.join(map(str, legal))}",
        )


def tp_box(name: str, shape: tuple[int, ...], spec: ModelSpec, rank: int, size: int) -> Box:
    """The box of tensor `name` (whole `shape`) that rank `rank` of `size` holds.

    Example: q_proj.weight of shape (8, 4), rank 1 of 2 → rows 4 to 8. Raises IllegalParallelism.
    """
    check_tp(spec, size)
    start, stop = [0] * len(shape), list(shape)
    if any(part in name for part in _ROWS):
        dimension = 0
    elif name.endswith(_COLUMNS):
        dimension = 1
    else:
        return Box(tuple(start), tuple(stop))
    part = shape[dimension] // size
    start[dimension], stop[dimension] = rank * part, (rank + 1) * part
    return Box(tuple(start), tuple(stop))
