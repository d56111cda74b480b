"""The parts of a tensor-parallel rank's parameters: boxes of the published tensors. Pure.

    published (transformers' names)              a rank's parameters
    q_proj, k_proj, v_proj   its heads' rows ──► the same, or stacked: qkv_proj
    gate_proj, up_proj       its rows        ──► the same, or stacked: gate_up_proj
    o_proj, down_proj        its columns     ──► the same
    all else                 whole           ──► the same
    embed_tokens             whole           ──► lm_head too where they are tied: one tensor, two names

An adapter's A is sharded where its weight's columns are, its B where the rows are (earl.models.lora).

Whoever reads weights, from a checkpoint or over the data plane, follows this one table. Where there are
more ranks than key-value heads, neighbouring ranks hold the same head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from earl.dispatch.layout.box import Box
from earl.models.spec import ModelSpec
from earl.models.tp import check_tp


@dataclass(frozen=True, slots=True)
class Family:
    """The sharding and fusing of a family's models, by the last parts of their parameters' names.

    shards: dimension, and the field of ModelSpec that counts what is dealt over ranks. fused: modules that
    an engine may stack by rows into one. tied: parameters that are another one under a second name.
    """

    shards: Mapping[str, tuple[int, str]]
    fused: Mapping[str, tuple[str, ...]]
    tied: Mapping[str, str]


_LLAMA = Family(
    shards={
        "q_proj.weight": (0, "heads"),
        "q_proj.bias": (0, "heads"),
        "k_proj.weight": (0, "kv_heads"),
        "k_proj.bias": (0, "kv_heads"),
        "v_proj.weight": (0, "kv_heads"),
        "v_proj.bias": (0, "kv_heads"),
        "o_proj.weight": (1, "heads"),
        "gate_proj.weight": (0, "intermediate"),
        "up_proj.weight": (0, "intermediate"),
        "down_proj.weight": (1, "intermediate"),
    },
    fused={"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")},
    tied={"lm_head.weight": "model.embed_tokens.weight"},
)
# The three name their parameters alike; ModelSpec.shapes() lists those that a model has.
FAMILIES: dict[str, Family] = {"llama": _LLAMA, "qwen2": _LLAMA, "qwen3": _LLAMA}


# The dimension that an adapter's parameter has in common with its weight: it is sharded there alike.
_ADAPTERS = {"lora_a": 1, "lora_b": 0}


@dataclass(frozen=True, slots=True)
class SlicePart:
    """`box` of published tensor `source` goes to `target`, a box of a rank's parameter of equal shape."""

    source: str
    box: Box
    target: Box


@dataclass(frozen=True, slots=True)
class RankParameter:
    """A parameter of a rank. parts fill it exactly once. same_as: the name of the parameter that it is under
    a second name, "" for one of its own.
    """

    shape: tuple[int, ...]
    parts: tuple[SlicePart, ...]
    same_as: str = ""


def rank_parameters(
    spec: ModelSpec, rank: int, size: int, *, fused: bool = False
) -> dict[str, RankParameter]:
    """The parameters of rank `rank` of `size` by name, in the order of computation.

    fused: with qkv_proj and gate_up_proj. Raises IllegalParallelism.
    Example: o_proj of shape (8, 16), rank 1 of 2 → Own((8, 8), (Part(name, [0:8, 8:16], [0:8, 0:8]),)).
    """
    check_tp(spec, size)
    family = FAMILIES[spec.family]
    stacked = {part: whole for whole, several in family.fused.items() for part in several} if fused else {}
    boxes: dict[str, list[tuple[str, Box]]] = {}
    for source, shape in spec.shapes().items():
        *path, module, kind = source.split(".")
        name = ".".join((*path, stacked.get(module, module), kind))
        boxes.setdefault(name, []).append((source, tp_box(source, shape, spec, rank, size)))
    parameters = {name: _by_rows(several) for name, several in boxes.items()}
    if spec.tied:
        parameters |= {name: replace(parameters[other], same_as=other) for name, other in family.tied.items()}
    return parameters


@dataclass(frozen=True, slots=True)
class TpShard:
    """A tensor as `parts` equal ranges of dimension `dim`, each held by `replicas` neighbouring ranks."""

    dim: int
    parts: int
    replicas: int


def tp_shard(name: str, spec: ModelSpec, size: int) -> TpShard | None:
    """Returns how `size` ranks hold published tensor `name`, an adapter's too; None: each has it whole."""
    *_, module, kind = name.split(".")
    shard = FAMILIES[spec.family].shards.get(f"{module}.{'weight' if kind in _ADAPTERS else kind}")
    if shard is None or size == 1:
        return None
    dim, counted = shard
    if _ADAPTERS.get(kind, dim) != dim:
        return None
    parts = min(size, getattr(spec, counted))
    return TpShard(dim, parts, size // parts)


def tp_box(name: str, shape: tuple[int, ...], spec: ModelSpec, rank: int, size: int) -> Box:
    """The box of published tensor `name` (whole `shape`) that rank `rank` of `size` needs.

    Example: q_proj.weight of shape (8, 4), rank 1 of 2 → rows 4 to 8. size is one of legal_tp(spec).
    """
    whole = Box.whole(shape)
    shard = tp_shard(name, spec, size)
    if shard is None:
        return whole
    length = shape[shard.dim] // shard.parts
    start, stop = list(whole.start), list(whole.stop)
    start[shard.dim] = rank // shard.replicas * length
    stop[shard.dim] = start[shard.dim] + length
    return Box(tuple(start), tuple(stop))


def whole_shape(name: str, shape: tuple[int, ...], spec: ModelSpec, size: int) -> tuple[int, ...]:
    """The whole shape of tensor `name` if each of `size` ranks holds `shape` of it."""
    shard = tp_shard(name, spec, size)
    return tuple(n * shard.parts if shard and dim == shard.dim else n for dim, n in enumerate(shape))


def _by_rows(boxes: list[tuple[str, Box]]) -> RankParameter:
    """A parameter that stacks these boxes, (published tensor, box), by rows."""
    parts: list[SlicePart] = []
    row = 0
    for source, box in boxes:
        rows, *rest = box.shape
        target = Box((row, *[0] * len(rest)), (row + rows, *rest))
        parts.append(SlicePart(source, box, target))
        row += rows
    return RankParameter((row, *boxes[0][1].shape[1:]), tuple(parts))
