"""Layouts and plans as tests need them: of DTensors, of whole boxes, copy by copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from earl.dispatch.layout.box import Box, Layout, ShardBox
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import Placement, Runs, placement_boxes, shard_order
from earl.dispatch.plan.class_plan import CopyBlock
from earl.dispatch.publish.dtensor import placements_of


def to_torch(placements: Sequence[Placement]) -> tuple[Any, ...]:
    """The same as torch's placements, which have no zigzag."""
    converted: list[Any] = []
    for placement in placements:
        match placement:
            case ("replicate",):
                converted.append(Replicate())
            case ("shard", int(dim)):
                converted.append(Shard(dim))
            case ("strided_shard", int(dim), int(split)):
                converted.append(_StridedShard(dim, split_factor=split))
            case _:
                raise ValueError(placement)
    return tuple(converted)


def mesh_layout(tensor: DTensor, owners: Sequence[str]) -> MeshLayout:
    """The layout of a DTensor over owners, who are given row-major over its mesh.

    The layout's mesh has the dimensions in the order in which they cut (TP before FSDP2), and its owners
    with them: look them up by name.
    """
    mesh_shape = tuple(tensor.device_mesh.shape)
    order, placements = shard_order(mesh_shape, placements_of(tensor))
    by_coordinate = np.array(owners, object).reshape(mesh_shape).transpose(order)
    return MeshLayout(
        tuple(tensor.shape), by_coordinate.shape, placements, tuple(by_coordinate.ravel().tolist())
    )


def layout_of(mesh: MeshLayout, name: str, dtype: str, tensor: int = 0) -> Layout:
    """One tensor of a class with every owner's boxes."""
    numbers = np.unravel_index(tensor, mesh.shape[: mesh.stack]) if mesh.stack else ()
    shards: list[ShardBox] = []
    for rank, owner in enumerate(mesh.owners):
        for box in placement_boxes(mesh.shape, mesh.mesh_shape, mesh.placements, mesh.coordinates(rank)):
            if all(a <= i < b for i, a, b in zip(numbers, box.start, box.stop, strict=False)):
                shards.append(ShardBox(owner, Box(box.start[mesh.stack :], box.stop[mesh.stack :])))
    return Layout(name, dtype, mesh.shape[mesh.stack :], tuple(shards))


def box_runs(box: Box) -> tuple[Runs, ...]:
    """A box as the ranges of each dimension that a reader asks for."""
    return tuple(((a, b),) if a < b else () for a, b in zip(box.start, box.stop, strict=True))


def copies_of(blocks: Iterable[CopyBlock]) -> Iterator[tuple[CopyBlock, int, int]]:
    """(block, index into its tensors, row) of every copy, one by one."""
    for block in blocks:
        for tensor in range(len(block.tensors)):
            for row in range(len(block.peer)):
                yield block, tensor, row
