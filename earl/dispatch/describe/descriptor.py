"""What a descriptor says, as plain values: arenas, regions, shards. `codec` turns them to bytes and back.

Dtypes go by name. numpy has no bfloat16: such arrays travel as uint16 views of the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from earl.dispatch.layout.box import Box
from earl.errors import LayoutError, LayoutGap

if TYPE_CHECKING:
    from earl.dispatch.describe.pieces import Regions
    from earl.dispatch.describe.tensor_classes import ClassShard

CHECKSUM_BLOCK_BYTES = 1 << 20
# Columns of one region begin at multiples of this.
COLUMN_ALIGNMENT_BYTES = 64

NUMPY_DTYPES: dict[str, np.dtype] = {
    "uint8": np.dtype(np.uint8),
    "int8": np.dtype(np.int8),
    "bool": np.dtype(np.bool_),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype that carries a named dtype. Raises LayoutError for an unknown name."""
    try:
        return NUMPY_DTYPES[name]
    except KeyError:
        raise LayoutError(f"dtype {name!r} cannot travel", f"use one of {sorted(NUMPY_DTYPES)}") from None


def dtype_name(dtype: np.dtype) -> str:
    """The name under which an array of this dtype travels; uint16 is bfloat16's carrier."""
    try:
        return _NAMES[np.dtype(dtype)]
    except KeyError:
        raise LayoutError(f"arrays of {dtype} cannot travel", f"use one of {sorted(NUMPY_DTYPES)}") from None


@cache
def host_id() -> str:
    """Identifies this machine while it is up; the same in all its containers."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class ArenaRef:
    """A worker's memory and every way to reach it. ucx_address, nixl_address: host:port, empty if none."""

    owner: str
    incarnation: int
    path: str
    nonce: int
    size_bytes: int
    ucx_address: str
    device: str
    host: str
    nixl_address: str = ""


@dataclass(frozen=True, slots=True)
class RegionRef:
    """A published region. offset_bytes counts from the start of the arena's file.

    checksums: xxh3-64 of each block of checksum_block_bytes, the last one shorter; empty if none.
    """

    arena: ArenaRef
    slot: int
    generation: int
    offset_bytes: int
    size_bytes: int
    checksums: tuple[int, ...] = ()
    checksum_block_bytes: int = CHECKSUM_BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class ShardRef:
    """Where the bytes of one box lie. offset_bytes counts from the region's start."""

    box: Box
    region: RegionRef
    offset_bytes: int
    strides_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorShards:
    """One tensor as one descriptor knows it: shape is the global one, shards are this owner's."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: tuple[ShardRef, ...]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What one owner publishes under one key, for example "weights/7/trainer-0"."""

    key: str
    version: int
    tensors: tuple[TensorShards, ...]
    classes: tuple[ClassShard, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SequenceRecords:
    """N sequences of one owner. columns: (name, dtype's name), in the order in which they lie in a region,

    each of a sequence's rows: int64[N]; region i holds sequence i."""

    arena: ArenaRef
    columns: tuple[tuple[str, str], ...]
    rows: np.ndarray
    regions: Regions

    def __len__(self) -> int:
        return len(self.rows)

    def column_offsets(self, names: Sequence[str], dtypes: Sequence[np.dtype]) -> np.ndarray:
        """int64[N, C], bytes from a region's start to these columns. Raises LayoutGap, LayoutError."""
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
    """(int64[N, C] where each column begins, int64[N] bytes in all): columns of rows end to end, aligned."""
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
