"""The contents of a descriptor as plain values: tensors, their shards, sequences.

`registry.codec` turns them into bytes and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.describe.regions import ArenaRef, RegionRef, Regions
from earl.dispatch.describe.tensor_classes import ClassShard
from earl.dispatch.layout.box import Box
from earl.errors import LayoutError, LayoutGap

# Columns of one region begin at multiples of this.
COLUMN_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class ShardRef:
    """The place of one box's bytes. offset_bytes counts from the region's start."""

    box: Box
    region: RegionRef
    offset_bytes: int
    strides_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorShards:
    """One tensor as one descriptor lists it: the global shape, and the shards of one owner."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: tuple[ShardRef, ...]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The content that one owner publishes under one key, for example "weights/7/trainer-0"."""

    key: str
    version: int
    tensors: tuple[TensorShards, ...]
    classes: tuple[ClassShard, ...] = ()


def only_region(descriptor: Descriptor) -> RegionRef | None:
    """The region that holds all of a descriptor; None if there are several or none."""
    shards = [shard for tensor in descriptor.tensors for shard in tensor.shards]
    regions = [shard.region for shard in (*descriptor.classes, *shards)]
    return regions[0] if regions and all(region is regions[0] for region in regions) else None


@dataclass(frozen=True, slots=True, eq=False)
class SequenceRecords:
    """N sequences of one owner; region i holds sequence i.

    columns: (name, dtype's name), in the order in which they lie in a region. rows: int64[N], the rows of
    each sequence, as many in every column.
    """

    arena: ArenaRef
    columns: tuple[tuple[str, str], ...]
    rows: np.ndarray
    regions: Regions

    def __len__(self) -> int:
        return len(self.rows)

    def column_offsets(self, names: Sequence[str], dtypes: Sequence[np.dtype]) -> np.ndarray:
        """int64[N, C], bytes from a region's start to these columns.

        Raises LayoutGap for a column that is not published, LayoutError for one of another dtype.
        """
        known = [name for name, _ in self.columns]
        held = [numpy_dtype(dtype) for _, dtype in self.columns]
        for name, dtype in zip(names, dtypes, strict=True):
            if name not in known:
                raise LayoutGap(f"{self.arena.owner} publishes no column {name!r}", f"it publishes {known}")
            if held[known.index(name)] != dtype:
                raise LayoutError(
                    f"column {name} is {held[known.index(name)]}, the target {dtype}", "give it that dtype"
                )
        offsets, _ = packed(self.rows, [dtype.itemsize for dtype in held])
        return offsets[:, [known.index(name) for name in names]]


def packed(rows: np.ndarray, item_bytes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Lays columns out one after another, aligned: (int64[N, C] bytes to each, int64[N] bytes in all).

    rows: int64[N]. item_bytes: bytes of a row in each of the C columns.
    """
    sizes = rows[:, None] * np.asarray(item_bytes, np.int64)
    sizes = -(-sizes // COLUMN_ALIGNMENT_BYTES) * COLUMN_ALIGNMENT_BYTES
    stops = np.cumsum(sizes, axis=1)
    return stops - sizes, stops[:, -1]


def row_major(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a contiguous array of this shape."""
    strides: list[int] = []
    step = itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))
