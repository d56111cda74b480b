"""Tensors dealt over a mesh of owners, described once however many there are. Pure.

A `MeshLayout` is mesh shape + placements + owners for a whole class of tensors of one shape: its
leading `stack` dimensions number them. 61 layers of 256 experts, each matrix a tensor of its own, are one
layout of shape (61, 256, 2048, 7168) with stack 2; experts dealt over ranks are ("shard", 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from earl.dispatch.layout.placements import DimensionSplit, Placement, Runs, check, placement_runs, split_of
from earl.errors import LayoutError


@dataclass(frozen=True, slots=True)
class MeshLayout:
    """The distribution of every tensor of a class over owners, numbered row-major over the mesh.

    Example: MeshLayout((8, 6), (2, 2), (("replicate",), ("shard", 0)), ("a", "b", "c", "d")).
    """

    shape: tuple[int, ...]
    mesh_shape: tuple[int, ...]
    placements: tuple[Placement, ...]
    owners: tuple[str, ...]
    stack: int = 0

    def __post_init__(self) -> None:
        check(self.shape, self.mesh_shape, self.placements)
        if len(self.owners) != prod(self.mesh_shape):
            raise LayoutError(
                f"{len(self.owners)} owners on a mesh {self.mesh_shape}", "name one owner for each coordinate"
            )
        if not 0 <= self.stack <= len(self.shape):
            raise LayoutError(f"stack {self.stack} of shape {self.shape}", "stack counts leading dimensions")

    @property
    def tensors(self) -> int:
        """Returns how many tensors the class has, numbered row-major over the stack."""
        return prod(self.shape[: self.stack])

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Returns the coordinates of owner number `rank` on the mesh."""
        return tuple(int(i) for i in np.unravel_index(rank, self.mesh_shape))

    def runs(self, rank: int) -> tuple[Runs, ...]:
        """The ranges of each dimension, the stack's too, that owner number `rank` holds, in local order."""
        return placement_runs(self.shape, self.mesh_shape, self.placements, self.coordinates(rank))

    def splits(self) -> tuple[DimensionSplit, ...]:
        """Splits each dimension over parts: the coordinates, row-major, of the mesh dimensions that
        split it.
        """
        return tuple(
            split_of(length, tuple((self.placements[i], self.mesh_shape[i]) for i in self._acting(dim)))
            for dim, length in enumerate(self.shape)
        )

    def holders(self) -> np.ndarray:
        """int32[parts of dimension 0, …, parts of the last, replicas]: who holds a product of parts."""
        acting = [self._acting(dim) for dim in range(len(self.shape))]
        placed = [i for mesh_dims in acting for i in mesh_dims]
        idle = [i for i in range(len(self.mesh_shape)) if i not in placed]
        ranks = np.arange(len(self.owners), dtype=np.int32).reshape(self.mesh_shape)
        parts = [prod(self.mesh_shape[i] for i in mesh_dims) for mesh_dims in acting]
        return ranks.transpose([*placed, *idle]).reshape([*parts, -1])

    def _acting(self, dim: int) -> list[int]:
        """The mesh dimensions that split a tensor dimension, from the left."""
        return [i for i, placement in enumerate(self.placements) if placement[1:2] == (dim,)]
