"""A transport's work as arrays: two-dimensional copies out of one arena into byte buffers.

    piece i:  region ─ offset ────────► run │ … stride … │ run │ …   (rows of them)
    target:   buffer ─ target_offset ─► run │ … target_stride … │ run │ …

One piece is what a network card or cudaMemcpy2D takes at once. `coalesce` turns copies of any dimensions
into the fewest of them, all copies together; no Python object stands for a piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from earl.dispatch.describe.regions import CHECKSUM_BLOCK_BYTES, Regions
from earl.errors import LayoutError


class Repeat:
    """Identifies pieces that are copied again and again, each time out of other regions.

    A transport keeps what it prepared for them in a weak dictionary by this key: as long as their reader
    keeps the pieces.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """P copies in the order in which they are to be made; none is empty.

    region: int32[P] into regions. offset: int64[P], bytes from the region's start to the first run. rows,
    run, stride: int64[P]: number of runs, bytes of a run, bytes from one run to the next. buffers:
    one-dimensional writable uint8 arrays; buffer: int32[P] into them; target_offset, target_stride:
    int64[P], as offset and stride. repeat: set if the same pieces will be copied again, out of other regions.
    """

    regions: Regions
    region: np.ndarray
    offset: np.ndarray
    rows: np.ndarray
    run: np.ndarray
    stride: np.ndarray
    buffers: tuple[np.ndarray, ...]
    buffer: np.ndarray
    target_offset: np.ndarray
    target_stride: np.ndarray
    repeat: Repeat | None = None

    def __len__(self) -> int:
        return len(self.region)

    @property
    def size_bytes(self) -> int:
        return int((self.rows * self.run).sum())

    @property
    def verifiable(self) -> bool:
        """Returns whether all that is read has checksums."""
        return bool(self.regions.verifiable[self.region].all())

    @property
    def start(self) -> np.ndarray:
        """int64[P]: the first byte read, from the start of the arena's file."""
        return self.regions.offset_bytes[self.region] + self.offset

    @property
    def stop(self) -> np.ndarray:
        """int64[P]: one past the last byte read, from the region's start."""
        return self.offset + (self.rows - 1) * self.stride + self.run

    @property
    def reach(self) -> np.ndarray:
        """int64[N]: how far into each region is read."""
        reach = np.zeros(len(self.regions), np.int64)
        np.maximum.at(reach, self.region, self.stop)
        return reach

    def take(self, index: np.ndarray | slice) -> Pieces:
        """The pieces of these indices, in that order."""
        return replace(self, repeat=None, **{name: getattr(self, name)[index] for name in _PER_PIECE})

    def blocks(self, *, between: bool = False) -> np.ndarray:
        """int64[B, 2]: (region, checksum block) of every block that the pieces touch, each once, sorted.

        between: with the blocks that lie between the runs of a piece, untouched, where these are far apart.
        """
        size = self.regions.block_bytes
        apart = self if between else self.split_rows(np.where(self.stride > size, 1, self.rows))
        first = apart.offset // size
        index, nth = repeat_indices(-(-apart.stop // size) - first)
        block = first[index] + nth
        return np.unique(np.stack([apart.region[index], block], axis=1), axis=0)

    def split(self, limit_bytes: int) -> Iterator[Pieces]:
        """The same copies, in order, in groups of at most limit_bytes."""
        limited = self._limited(limit_bytes)
        total = np.cumsum(limited.rows * limited.run)
        first = 0
        while first < len(total):
            before = int(total[first - 1]) if first else 0
            stop = int(np.searchsorted(total, before + limit_bytes, "right"))
            yield limited if stop - first == len(total) else limited.take(slice(first, stop))
            first = stop

    def split_rows(self, rows: np.ndarray) -> Pieces:
        """The same copies, none of more than rows[i] rows: int64[P], at least 1."""
        index, nth = repeat_indices(-(-self.rows // rows))
        first = nth * rows[index]
        parts = self.take(index)
        return replace(
            parts,
            offset=parts.offset + first * parts.stride,
            target_offset=parts.target_offset + first * parts.target_stride,
            rows=np.minimum(rows[index], parts.rows - first),
        )

    def _limited(self, limit_bytes: int) -> Pieces:
        """Splits pieces above limit_bytes into pieces of fewer rows, and too long a run into parts."""
        if not len(self) or int((self.rows * self.run).max()) <= limit_bytes:
            return self
        fewer = self.split_rows(np.maximum(limit_bytes // self.run, 1))
        long = fewer.run > limit_bytes
        if not long.any():
            return fewer
        index, nth = repeat_indices(np.where(long, -(-fewer.run // limit_bytes), 1))
        parts, step = fewer.take(index), nth * limit_bytes
        run = np.where(long[index], np.minimum(limit_bytes, parts.run - step), parts.run)
        target_offset = parts.target_offset + step
        return replace(parts, offset=parts.offset + step, target_offset=target_offset, run=run)


_WHOLE = ("regions", "buffers", "repeat")
_PER_PIECE = tuple(field.name for field in fields(Pieces) if field.name not in _WHOLE)


def most_blocks(table: np.ndarray, block_bytes: int) -> np.ndarray:
    """int64[P]: at least as many as pieces touch blocks. table: int64[P, 4], offset, rows, run and stride."""
    offset, rows, run, stride = table.T
    span = -(-(offset + (rows - 1) * stride + run) // block_bytes) - offset // block_bytes
    return np.minimum(span, rows * (run // block_bytes + 2))


@dataclass(frozen=True, slots=True, eq=False)
class Strips:
    """Copies as pieces whose region and buffer are not yet named. copy: int64[P], which copy each is of."""

    copy: np.ndarray
    offset: np.ndarray
    rows: np.ndarray
    run: np.ndarray
    stride: np.ndarray
    target_offset: np.ndarray
    target_stride: np.ndarray


def coalesce(
    offset: np.ndarray,
    target_offset: np.ndarray,
    extent: np.ndarray,
    source_strides: np.ndarray,
    target_strides: np.ndarray,
    item_bytes: np.ndarray | int,
) -> Strips:
    """C copies of R dimensions as the fewest pieces.

    offset, target_offset: int64[C], bytes to the first element. extent: int64[C, R], elements. strides:
    int64[C, R] or [R], bytes. Empty copies are left out.
    """
    copy = np.flatnonzero((extent > 0).all(axis=1))
    extent = extent[copy]
    source_strides = np.broadcast_to(source_strides, (len(target_offset), extent.shape[1]))[copy]
    target_strides = np.broadcast_to(target_strides, (len(target_offset), extent.shape[1]))[copy]
    unit = np.ones(len(copy), np.int64)
    run = unit * np.broadcast_to(np.asarray(item_bytes, np.int64), (len(target_offset),))[copy]
    rows, stride, target_stride = unit.copy(), unit * 0, unit * 0
    offset, target_offset = offset[copy].astype(np.int64), target_offset[copy].astype(np.int64)
    # Unrolled dimensions multiply pieces at the end, from the outside in, so that order is row-major.
    unroll: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for dim in reversed(range(extent.shape[1])):
        count, source, target = extent[:, dim], source_strides[:, dim], target_strides[:, dim]
        left = count > 1
        longer = left & (rows == 1) & (source == run) & (target == run)
        run = np.where(longer, run * count, run)
        left &= ~longer
        opens = left & (rows == 1)
        more = left & (rows > 1) & (source == stride * rows) & (target == target_stride * rows)
        stride, target_stride = np.where(opens, source, stride), np.where(opens, target, target_stride)
        rows = np.where(opens | more, rows * count, rows)
        left &= ~opens & ~more
        if left.any():
            unroll.append((np.where(left, count, 1), source, target))
    index = np.arange(len(copy))
    for counts, source, target in reversed(unroll):
        again, step = repeat_indices(counts[index])
        index = index[again]
        offset = offset[again] + step * source[index]
        target_offset = target_offset[again] + step * target[index]
    return Strips(
        copy[index], offset, rows[index], run[index], stride[index], target_offset, target_stride[index]
    )


def repeat_indices(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(i, n), int64 each: index i counts[i] times, n counting from 0 in each."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)


def flat_bytes(array: np.ndarray) -> np.ndarray:
    """The memory of a writable array as uint8[N], from its first element's first byte to its last's last.

    Raises LayoutError for an array that cannot be written, or runs backwards.
    """
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        raise LayoutError(
            f"a target of strides {array.strides}, writable: {array.flags.writeable}",
            "give a writable array with positive strides",
        )
    if not array.size:
        return np.empty(0, np.uint8)
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)
    first = array[(slice(0, 1),) * array.ndim].reshape(1).view(np.uint8)
    length = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True))
    return np.lib.stride_tricks.as_strided(first, (length + array.itemsize,), (1,), writeable=True)


def join_pieces(parts: Iterable[Pieces]) -> Pieces:
    """Pieces of one arena end to end. Raises LayoutError where checksum blocks differ."""
    all_ = list(parts)
    if len(all_) == 1:
        return all_[0]
    regions = [part.regions for part in all_]
    if len({each.block_bytes for each in regions if len(each.checksums)}) > 1:
        raise LayoutError("checksum blocks of different sizes in one arena", "publish them again")
    held = np.cumsum([0, *(len(part.buffers) for part in all_)])
    merged, places = _merged(regions)

    def together(name: str, of: Sequence[object]) -> np.ndarray:
        return np.concatenate([getattr(each, name) for each in of])

    columns = {name: together(name, all_) for name in _PER_PIECE}
    before = np.cumsum([0, *(len(each) for each in regions)])
    region = np.concatenate([part.region + shift for part, shift in zip(all_, before, strict=False)])
    buffer = [part.buffer + np.int32(shift) for part, shift in zip(all_, held, strict=False)]
    columns |= {"region": places[region], "buffer": np.concatenate(buffer)}
    buffers = tuple(buffer for part in all_ for buffer in part.buffers)
    return Pieces(regions=merged, buffers=buffers, repeat=None, **columns)


def _merged(all_: Sequence[Regions]) -> tuple[Regions, np.ndarray]:
    """(every region once, int32[N] where each of all of them is now)."""
    numbers: dict[tuple[int, int], int] = {}
    places: list[int] = []
    kept: list[tuple[Regions, int]] = []
    for each in all_:
        for i, name in enumerate(zip(each.slot.tolist(), each.generation.tolist(), strict=True)):
            if name not in numbers:
                numbers[name] = len(kept)
                kept.append((each, i))
            places.append(numbers[name])
    digests = [each.checksums[each.first_checksum[i] : each.first_checksum[i + 1]] for each, i in kept]

    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(each, name)[i] for each, i in kept], dtype)

    merged = Regions(
        column("slot", np.int64),
        column("generation", np.uint64),
        column("offset_bytes", np.int64),
        column("size_bytes", np.int64),
        np.cumsum([0, *(len(each) for each in digests)]),
        np.concatenate([np.zeros(0, np.uint64), *digests]),
        next((each.block_bytes for each in all_ if len(each.checksums)), CHECKSUM_BLOCK_BYTES),
    )
    return merged, np.array(places, np.int32)
