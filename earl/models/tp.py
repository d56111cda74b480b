"""The tensor and context parallel degrees that a model's heads allow. Pure.

earl.models.slices lists what each rank then holds.
"""

from __future__ import annotations

from earl.errors import IllegalParallelism
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism, divisors


def legal_tp(spec: ModelSpec) -> list[int]:
    """Degrees that divide heads and the intermediate size, and give every rank whole kv_heads, ascending.

    Beyond kv_heads, a multiple of it: then several ranks hold the same one.
    """
    return [tp for tp in divisors(spec.heads, spec.kv_heads) if spec.intermediate % tp == 0]


def legal_cp(heads: int, kv_heads: int) -> list[int]:
    """Degrees over which a rank's own heads can be dealt, ascending: as for tp, but for what lies inside.

    heads, kv_heads: what tensor parallelism leaves a rank (rank_heads).
    """
    return divisors(heads, kv_heads)


def legal_parallelisms(spec: ModelSpec, devices: int) -> list[Parallelism]:
    """Every (dp, tp, cp) of exactly so many devices, ascending in tp, then in cp."""
    return [
        Parallelism(devices // (tp * cp), tp, cp)
        for tp in legal_tp(spec)
        for cp in legal_cp(*rank_heads(spec, tp))
        if devices % (tp * cp) == 0
    ]


def check_tp(spec: ModelSpec, tp: int) -> None:
    """Raises IllegalParallelism for a tp that the model forbids.

    The error names the degrees that are allowed.
    """
    legal = legal_tp(spec)
    if tp not in legal:
        raise IllegalParallelism(
            f"tp {tp} does not divide {spec.heads} heads, {spec.kv_heads} kv_heads and an intermediate size "
            f"of {spec.intermediate}",
            f"use tp {' or '.join(map(str, legal))}",
        )


def check_parallelism(spec: ModelSpec, tp: int, cp: int) -> None:
    """Raises IllegalParallelism where tp ranks cannot have their slices, or cp ranks of each their heads."""
    heads, kv_heads = rank_heads(spec, tp)
    legal = legal_cp(heads, kv_heads)
    if cp not in legal:
        raise IllegalParallelism(
            f"cp {cp} does not divide the {heads} heads and {kv_heads} kv_heads that tp {tp} leaves a rank "
            f"of {spec.heads} and {spec.kv_heads}",
            f"use cp {' or '.join(map(str, legal))} with tp {tp}",
        )


def rank_kv_heads(spec: ModelSpec, rank: int, tp: int) -> tuple[int, int]:
    """(first, stop) of the kv_heads that rank `rank` of `tp` holds; neighbours hold the same one beyond
    kv_heads. Example: 2 kv_heads, rank 3 of 4 → (1, 2)."""
    first = rank * spec.kv_heads // tp
    return first, first + rank_heads(spec, tp)[1]


def rank_heads(spec: ModelSpec, tp: int) -> tuple[int, int]:
    """(heads, kv_heads) of each rank. Raises IllegalParallelism."""
    check_tp(spec, tp)
    return spec.heads // tp, max(1, spec.kv_heads // tp)
