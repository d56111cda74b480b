"""Publishes arrays that exist already: a copy into the arena, where owners of a run write in place."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from earl.dispatch.describe.descriptor import Descriptor
from earl.dispatch.describe.dtypes import NUMPY_DTYPES, numpy_dtype
from earl.dispatch.layout.box import Box, chunk_range
from earl.dispatch.publish.tensor_store import TensorSpec, TensorStore
from earl.errors import LayoutError

_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Placed:
    """An array that is `box` of a tensor of `global_shape`. dtype: by name; the array's if empty."""

    array: np.ndarray
    global_shape: tuple[int, ...]
    box: Box
    dtype: str = ""

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.dtype or _dtype_name(self.array.dtype), self.global_shape, self.box)


def shard_box(shape: Sequence[int], dim: int, index: int, count: int) -> Box:
    """The box of shard `index` of `count` along `dim`, by torch.chunk's rule; may be empty."""
    start, stop = chunk_range(shape[dim], index, count)
    whole = Box.whole(shape)
    return Box(
        (*whole.start[:dim], start, *whole.start[dim + 1 :]),
        (*whole.stop[:dim], stop, *whole.stop[dim + 1 :]),
    )


async def put_tensors(
    store: TensorStore, key: str, tensors: Mapping[str, np.ndarray | Placed], version: int = 0
) -> Descriptor:
    """Copies the tensors into the arena and publishes them. Raises ArenaFull, LayoutError, BusUnavailable,
    having kept nothing.
    """
    placed = {name: _placed(tensor) for name, tensor in tensors.items()}
    arrays = store.reserve(key, {name: p.spec for name, p in placed.items()}, version)
    try:
        for name, source in placed.items():
            await asyncio.to_thread(np.copyto, arrays[name], source.array, casting="no")
        return (await store.publish(key))[0]
    except BaseException:
        await store.remove(key)
        raise


def _dtype_name(dtype: np.dtype) -> str:
    """The name under which an array of this dtype travels; uint16 is bfloat16's carrier."""
    try:
        return _NAMES[np.dtype(dtype)]
    except KeyError:
        raise LayoutError(f"arrays of {dtype} cannot travel", f"use one of {sorted(NUMPY_DTYPES)}") from None


def _placed(tensor: np.ndarray | Placed) -> Placed:
    placed = tensor if isinstance(tensor, Placed) else Placed(tensor, tensor.shape, Box.whole(tensor.shape))
    spec = placed.spec
    if placed.array.shape != spec.held.shape or placed.array.dtype != numpy_dtype(spec.dtype):
        raise LayoutError(
            f"array of {placed.array.dtype} {placed.array.shape} for box {spec.held} of {spec.dtype}",
            "give the array the box's shape and the dtype that carries it (uint16 for bfloat16)",
        )
    return placed
