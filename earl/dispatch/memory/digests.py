"""Digests of arenas' memory: xxh3-64 of each checksum block. Many bytes are hashed by several threads.

xxhash releases the GIL while an existing state is updated, and holds it in the call that hashes at once. Long
blocks are hashed by updates, so that a trainer computes meanwhile.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import xxhash

from earl.dispatch.describe.regions import CHECKSUM_BLOCK_BYTES, Regions

# Below this, handing blocks to threads takes longer than it saves.
_ALONE_BYTES = 32 << 20
# Above this, the GIL is released.
_LONG_BYTES = 64 << 10
# Memory is read no faster by more threads than this.
_MOST_THREADS = 4


def region_digests(region: np.ndarray, block_bytes: int = CHECKSUM_BLOCK_BYTES) -> tuple[int, ...]:
    """xxh3-64 of each block of a region's bytes, uint8[N], the last one shorter."""
    starts = np.arange(0, len(region), block_bytes)
    return tuple(_hashed(region, starts, np.minimum(starts + block_bytes, len(region))).tolist())


def block_digests(memory: np.ndarray, regions: Regions, blocks: np.ndarray) -> np.ndarray:
    """uint64[B]: xxh3-64 of blocks, int64[B, 2] of (region, block). memory: uint8, the arena's file."""
    region, block = blocks[:, 0], blocks[:, 1]
    start = block * regions.block_bytes
    stop = np.minimum(start + regions.block_bytes, regions.size_bytes[region])
    offset = regions.offset_bytes[region]
    return _hashed(memory, offset + start, offset + stop)


def _hashed(memory: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """uint64[B]: the digests of the bytes from each start to its stop."""
    view = memory.data
    ranges = list(zip(starts.tolist(), stops.tolist(), strict=True))

    def hashed(some: list[tuple[int, int]]) -> list[int]:
        return [digest(view[start:stop]) for start, stop in some]

    if int((stops - starts).sum()) < _ALONE_BYTES or _threads() == 1:
        return np.array(hashed(ranges), np.uint64)
    share = -(-len(ranges) // _threads())
    parts = _pool().map(hashed, [ranges[i : i + share] for i in range(0, len(ranges), share)])
    return np.array([each for part in parts for each in part], np.uint64)


def digest(data: memoryview) -> int:
    """xxh3-64 of bytes."""
    if len(data) < _LONG_BYTES:
        return xxhash.xxh3_64_intdigest(data)
    state = xxhash.xxh3_64()
    state.update(data)
    return state.intdigest()


@cache
def _threads() -> int:
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_threads(), "earl-digests")


# A process that was forked has the pool, and none of its threads.
os.register_at_fork(after_in_child=_pool.cache_clear)
