"""The boxes of each tensor that trainer ranks hold and readers need in `earl bench reshard`. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.put_tensors import shard_box
from earl.dispatch.layout.box import Box
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import Placement, placement_boxes
from earl.models.slices import FAMILIES, RankParameter, SlicePart, rank_parameters
from earl.models.spec import ModelSpec

# SmolLM2-135M, but for heads that two and four ranks can share out.
SMOLLM2 = ModelSpec("llama", 576, 30, 8, 4, 64, 1536, 49152, tied=True)
DTYPE = "bfloat16"
CARRIER = np.dtype(np.uint16)
# Published side by side, each in its slot, and read in turn: in which bits a version's values are others.
VERSIONS = {1: np.uint16(0), 2: np.uint16(0x5555)}


@dataclass(frozen=True, slots=True)
class ReshardCase:
    """Weights of tp x dp trainer ranks, TP outermost, to `readers`: an engine of that tp, or FSDP2 ranks."""

    name: str
    tp: int
    dp: int
    readers: int
    engine: bool

    @property
    def trainers(self) -> int:
        return self.tp * self.dp


CASES = (
    ReshardCase("dp4 -> tp2", 1, 4, 2, engine=True),
    ReshardCase("tp2 x dp2 -> tp1", 2, 2, 1, engine=True),
    ReshardCase("dp4 -> dp3", 1, 4, 3, engine=False),
)


@dataclass(frozen=True, slots=True)
class Slice:
    """`box` of a trainer rank's local array of tensor `source` goes to `target` of a reader's parameter."""

    parameter: str
    target: Box
    trainer: int
    source: str
    box: Box


def layouts(spec: ModelSpec, case: ReshardCase) -> dict[str, MeshLayout]:
    """Returns the layout of each tensor over the trainer ranks, which stand row-major on a mesh (tp, dp)."""
    owners = tuple(map(str, range(case.trainers)))
    by_tensor: dict[str, MeshLayout] = {}
    for name, shape in spec.shapes().items():
        shard_rule = FAMILIES[spec.family].shards.get(".".join(name.split(".")[-2:]))
        over_tp: Placement = ("replicate",) if shard_rule is None else ("shard", shard_rule[0])
        by_tensor[name] = MeshLayout(shape, (case.tp, case.dp), (over_tp, ("shard", 0)), owners)
    return by_tensor


def rank_boxes(spec: ModelSpec, case: ReshardCase, rank: int) -> dict[str, Box]:
    """The boxes of trainer rank `rank`; tensors of which it has none are left out."""
    boxes: dict[str, Box] = {}
    for name, layout in layouts(spec, case).items():
        coordinates = layout.coordinates(rank)
        for box in placement_boxes(layout.shape, layout.mesh_shape, layout.placements, coordinates):
            boxes[name] = box
    return boxes


def first_held(spec: ModelSpec, case: ReshardCase) -> dict[str, list[tuple[int, Box]]]:
    """(trainer rank, box) of each tensor's boxes, each box once: the first of its replicas."""
    ranks_of: dict[str, dict[Box, int]] = {}
    for rank in range(case.trainers):
        for name, box in rank_boxes(spec, case, rank).items():
            ranks_of.setdefault(name, {}).setdefault(box, rank)
    return {name: [(rank, box) for box, rank in boxes.items()] for name, boxes in ranks_of.items()}


def owned(spec: ModelSpec, case: ReshardCase, rank: int) -> dict[str, RankParameter]:
    """The parameters that reader `rank` fills, each in its own array."""
    if case.engine:
        parameters = rank_parameters(spec, rank, case.readers, fused=True)
        return {name: parameter for name, parameter in parameters.items() if not parameter.same_as}
    boxes = {name: shard_box(shape, 0, rank, case.readers) for name, shape in spec.shapes().items()}
    return {
        name: RankParameter(box.shape, (SlicePart(name, box, Box.whole(box.shape)),))
        for name, box in boxes.items()
        if box.size
    }


def needed_bytes(spec: ModelSpec, case: ReshardCase) -> int:
    """Bytes that all readers' arrays hold together."""
    sizes = (
        int(np.prod(parameter.shape))
        for rank in range(case.readers)
        for parameter in owned(spec, case, rank).values()
    )
    return CARRIER.itemsize * sum(sizes)


def slices(spec: ModelSpec, case: ReshardCase, rank: int) -> Iterator[Slice]:
    """The copies that fill reader `rank`: the intersections of its boxes with every trainer rank's."""
    sources = first_held(spec, case)
    for name, parameter in owned(spec, case, rank).items():
        for part in parameter.parts:
            for trainer, box in sources[part.source]:
                common = part.box.intersect(box)
                if common is not None:
                    # Where the tensor's first element would lie in the reader's parameter.
                    origin = [a - b for a, b in zip(part.box.start, part.target.start, strict=True)]
                    target = common.relative_to(origin)
                    yield Slice(name, target, trainer, part.source, common.relative_to(box.start))


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The first version's random bits, the same wherever they are made: uint16 [shape]."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    return generator.integers(0, 1 << 16, shape, np.uint16)
