"""Allocation of byte ranges: small ones as blocks of slabs, large ones whole. Pure: no memory, only offsets.

```
take(n) ── n ≤ SMALL_BYTES ──► its class's lowest slab with a free block ──(none)──► a slab carved from ─┐
        └─ larger ───────────────────────────────────────────────────────────► best-fitting free range ◄─┘
give ──► the block's slab ──(its last)──► the slab's range ──► joins the free ranges before and behind it
```
Promise: `take(n)` finds a place exactly when n ≤ `largest_bytes`; what lies in a place never overlaps what
lies in another; when everything has been given back, the space is one range again. Taking and giving cost
the same however much is live, but for a bisection over the free ranges.

Classes, eight to a doubling, keep what a small region does not use below an eighth of it (as large ones'
rounding to `GRAIN_BYTES` does), and make regions of ragged lengths fit each other's places.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from heapq import heappop, heappush

from earl.config.data_plane import GRAIN_BYTES

ALIGNMENT_BYTES = 64
# Up to this size, regions are blocks of slabs; above, ranges of their own, in whole grains.
SMALL_BYTES = 32 << 10
# A slab is about this long, shorter in a space that would hold fewer than _LEAST_SLABS of them.
_SLAB_BYTES = 64 << 10
_LEAST_SLABS = 256


def rounded(size_bytes: int) -> int:
    """Size of the aligned place of this many bytes; what is empty still has a place of its own."""
    return max(ALIGNMENT_BYTES, _ceil(size_bytes, ALIGNMENT_BYTES))


def occupied(size_bytes: int) -> int:
    """Returns the bytes that a region of this size takes in a large enough space: at most an eighth more,
    aligned.

    In a space that is nearly full it may get a larger block: better than to be refused.
    """
    if size_bytes > SMALL_BYTES:
        return _ceil(size_bytes, GRAIN_BYTES)
    units = rounded(size_bytes) // ALIGNMENT_BYTES
    # Above eight units, sizes keep their four leading bits.
    return _ceil(units, 1 << max(0, (units - 1).bit_length() - 4)) * ALIGNMENT_BYTES


def _ceil(number: int, step: int) -> int:
    return -(-number // step) * step


_BLOCK_BYTES = sorted({occupied(size) for size in range(0, SMALL_BYTES + 1, ALIGNMENT_BYTES)})


@dataclass(slots=True)
class _Slab:
    """Blocks of one class. blocks: 0 once it is a free range again; free: offsets of its free blocks."""

    start: int
    size_bytes: int
    index: int
    blocks: int
    free: list[int]

    def __lt__(self, other: _Slab) -> bool:
        return self.start < other.start


class Slabs:
    """The bytes [start, stop), both multiples of ALIGNMENT_BYTES."""

    def __init__(self, start: int, stop: int) -> None:
        self._ranges = _Ranges(start, stop)
        self._slab_bytes = min(_SLAB_BYTES, (stop - start) // _LEAST_SLABS)
        # Per class, the slabs with a free block, lowest first; those that are gone linger behind.
        self._partial: list[list[_Slab]] = [[] for _ in _BLOCK_BYTES]
        # What each live place really occupies: a block of a slab, or a range of this size.
        self._live: dict[int, _Slab | int] = {}
        self._free_bytes = stop - start

    @property
    def free_bytes(self) -> int:
        """Bytes of no live place, be they in free ranges or in slabs."""
        return self._free_bytes

    @property
    def largest_bytes(self) -> int:
        """The largest size that `take` has a place for now."""
        largest = self._ranges.largest_bytes
        for index in reversed(range(bisect_right(_BLOCK_BYTES, largest), len(_BLOCK_BYTES))):
            if self._lowest(index) is not None:
                return _BLOCK_BYTES[index]
        return largest

    def take(self, size_bytes: int) -> int | None:
        """The offset of a place of at least this size, aligned; None when there is none large enough."""
        if size_bytes > SMALL_BYTES:
            offset = self._take_range(occupied(size_bytes))
            return self._take_range(rounded(size_bytes)) if offset is None else offset
        index = bisect_left(_BLOCK_BYTES, size_bytes)
        offset = self._take_block(index, self._lowest(index) or self._carve(index))
        if offset is None:
            offset = self._take_range(rounded(size_bytes))
        while offset is None and (index := index + 1) < len(_BLOCK_BYTES):
            offset = self._take_block(index, self._lowest(index))
        return offset

    def give(self, offset: int) -> None:
        """Gives back what `take` gave. Raises KeyError for what is not live."""
        home = self._live.pop(offset)
        if isinstance(home, int):
            self._free_bytes += home
            self._ranges.give(offset, home)
            return
        self._free_bytes += _BLOCK_BYTES[home.index]
        home.free.append(offset)
        if len(home.free) == home.blocks:
            home.blocks = 0
            self._ranges.give(home.start, home.size_bytes)
        elif len(home.free) == 1:
            heappush(self._partial[home.index], home)

    def _take_range(self, size_bytes: int) -> int | None:
        offset = self._ranges.take(size_bytes)
        if offset is not None:
            self._live[offset] = size_bytes
            self._free_bytes -= size_bytes
        return offset

    def _take_block(self, index: int, slab: _Slab | None) -> int | None:
        if slab is None:
            return None
        offset = slab.free.pop()
        if not slab.free:
            heappop(self._partial[index])
        self._live[offset] = slab
        self._free_bytes -= _BLOCK_BYTES[index]
        return offset

    def _lowest(self, index: int) -> _Slab | None:
        """The class's lowest slab with a free block."""
        partial = self._partial[index]
        while partial and not partial[0].blocks:
            heappop(partial)
        return partial[0] if partial else None

    def _carve(self, index: int) -> _Slab | None:
        """A new slab of this class, its lowest block to be taken first."""
        block_bytes = _BLOCK_BYTES[index]
        blocks = max(1, self._slab_bytes // block_bytes)
        start = self._ranges.take(blocks * block_bytes)
        if start is None:
            return None
        free = [start + i * block_bytes for i in reversed(range(blocks))]
        slab = _Slab(start, blocks * block_bytes, index, blocks, free)
        heappush(self._partial[index], slab)
        return slab


class _Ranges:
    """Free ranges, never adjacent, found by best fit; of equally large ones the lowest."""

    def __init__(self, start: int, stop: int) -> None:
        # Size by start, start by stop, and (size, start) of all, ascending.
        self._sizes: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        self._ordered: list[tuple[int, int]] = []
        if stop > start:
            self._add(start, stop - start)

    @property
    def largest_bytes(self) -> int:
        return self._ordered[-1][0] if self._ordered else 0

    def take(self, size_bytes: int) -> int | None:
        i = bisect_left(self._ordered, (size_bytes, 0))
        if i == len(self._ordered):
            return None
        range_bytes, start = self._ordered[i]
        self._remove(start, range_bytes)
        if range_bytes > size_bytes:
            self._add(start + size_bytes, range_bytes - size_bytes)
        return start

    def give(self, start: int, size_bytes: int) -> None:
        stop = start + size_bytes
        after = self._sizes.get(stop)
        if after is not None:
            self._remove(stop, after)
            stop += after
        before = self._starts.get(start)
        if before is not None:
            self._remove(before, start - before)
            start = before
        self._add(start, stop - start)

    def _add(self, start: int, size_bytes: int) -> None:
        self._sizes[start] = size_bytes
        self._starts[start + size_bytes] = start
        insort(self._ordered, (size_bytes, start))

    def _remove(self, start: int, size_bytes: int) -> None:
        del self._sizes[start], self._starts[start + size_bytes]
        del self._ordered[bisect_left(self._ordered, (size_bytes, start))]
