"""The spans to read so that pieces can be copied out of them: spans of the arena's file, a buffer at a time.
Pure.

    plain     runs of a piece ─► each a span; runs with small gaps ─► one span, gaps and all
    checked   pieces ─► the checksum blocks they touch, each once ─► spans of whole blocks

No process at the other end of a one-sided read could digest what it sends, so a reader that verifies
fetches whole blocks, digests them itself and copies its pieces out: end to end, at the price of reading
what lies around a slice in its blocks of 1 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from earl.dispatch.describe.pieces import Pieces
from earl.dispatch.describe.regions import Regions
from earl.errors import LayoutError

# A span costs about as much as reading this many bytes: smaller gaps are read along.
GAP_BYTES = 8 << 10
# Spans of one fetch.
MAX_SPANS = 4096
_WORD = np.int64(1) << 32


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """The content of one buffer. start, length: int64[S], spans of the arena's file, laid end to end.

    pieces: the copies out of that buffer. block: int64[B, 2], (region, block) of every checksum block in
    it, in order; stop: int64[B], where each ends in the buffer.
    """

    start: np.ndarray
    length: np.ndarray
    pieces: Pieces
    block: np.ndarray
    stop: np.ndarray

    @property
    def size_bytes(self) -> int:
        return int(self.length.sum())


def fetches(pieces: Pieces, limit_bytes: int, *, verify: bool) -> Iterator[Fetch]:
    """Fetches of at most limit_bytes that together serve the pieces, those that can be verified last.

    Raises LayoutError for checksum blocks that are too large for a buffer.
    """
    checked = pieces.regions.verifiable[pieces.region] & verify
    if not checked.all():
        yield from _plain(pieces.take(~checked), limit_bytes)
    if checked.any():
        yield from _checked(pieces.take(checked), limit_bytes)


def near(start: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted spans joined across small gaps: starts, lengths, and where each given one lies, end to end."""
    breaks = np.flatnonzero(np.diff(start, prepend=-_WORD) - np.append(0, length[:-1]) > GAP_BYTES)
    joined = start[breaks]
    stops = (start + length)[np.append(breaks[1:], len(start)) - 1]
    group = np.searchsorted(breaks, np.arange(len(start)), "right") - 1
    before = np.cumsum(stops - joined) - (stops - joined)
    return joined, stops - joined, before[group] + start - joined[group]


def _plain(pieces: Pieces, limit: int) -> Iterator[Fetch]:
    gap = pieces.stride - pieces.run
    dense = (pieces.rows > 1) & (gap <= GAP_BYTES) & (pieces.stride + pieces.run <= limit)
    few = np.where(dense, (limit - pieces.run) // np.maximum(pieces.stride, 1) + 1, 1)
    pieces = pieces.split_rows(few)
    pieces = _split_runs(pieces, pieces.offset, limit)
    length = pieces.stop - pieces.offset
    start = pieces.start
    total = np.cumsum(length)
    first = 0
    while first < len(total):
        before = int(total[first - 1]) if first else 0
        stop = int(np.searchsorted(total, before + limit, "right"))
        part = slice(first, min(stop, first + MAX_SPANS))
        offset = total[part] - length[part] - before
        copies = _out_of_buffer(pieces.take(part), offset)
        block, block_stop = np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
        yield Fetch(start[part], length[part], copies, block, block_stop)
        first = part.stop


def _checked(pieces: Pieces, limit: int) -> Iterator[Fetch]:
    regions = pieces.regions
    size = regions.block_bytes
    if limit < 3 * size:
        raise LayoutError(f"checksum blocks of {size} bytes", f"publish with blocks of at most {limit // 3}")
    reach = limit - 2 * size
    few = np.maximum((reach - pieces.run) // np.maximum(pieces.stride, 1) + 1, 1)
    pieces = pieces.split_rows(few)
    pieces = _split_runs(pieces, pieces.offset // size * size, limit // size * size)
    first, last = pieces.offset // size, (pieces.stop - 1) // size
    order = np.lexsort((first, pieces.region))
    pieces, first, last = pieces.take(order), first[order], last[order]
    # What each piece adds to those before it, most of whose blocks it may share.
    key = pieces.region * _WORD + last
    before = np.append(-1, np.maximum.accumulate(key)[:-1])
    new = np.where(before // _WORD == pieces.region, np.maximum(first, before % _WORD + 1), first)
    stop_bytes = np.minimum((last + 1) * size, regions.size_bytes[pieces.region])
    added = np.maximum(stop_bytes - new * size, 0)
    alone = stop_bytes - first * size
    total = np.cumsum(added)
    first_piece = 0
    while first_piece < len(total):
        left = limit - int(alone[first_piece])
        stop = max(int(np.searchsorted(total, total[first_piece] + left, "right")), first_piece + 1)
        fetch = _of_blocks(pieces.take(slice(first_piece, stop)))
        while fetch.size_bytes > limit:  # blocks that an earlier fetch had
            stop = (first_piece + stop) // 2
            fetch = _of_blocks(pieces.take(slice(first_piece, stop)))
        yield fetch
        first_piece = stop


def _split_runs(pieces: Pieces, origin: np.ndarray, step: int) -> Pieces:
    """The same copies, each single run split every `step` bytes from its origin (int64[P]) on."""
    parts = np.where(pieces.rows == 1, -(-(pieces.stop - origin) // step), 1)
    if int(parts.max()) == 1:
        return pieces
    index = np.repeat(np.arange(len(pieces)), parts)
    number = np.arange(len(index)) - np.repeat(np.cumsum(parts) - parts, parts)
    split = pieces.take(index)
    start = np.maximum(split.offset, origin[index] + number * step)
    stop = np.minimum(pieces.stop[index], origin[index] + (number + 1) * step)
    run = np.where(split.rows == 1, stop - start, split.run)
    target_offset = split.target_offset + start - split.offset
    return replace(split, offset=start, target_offset=target_offset, run=run)


def _of_blocks(pieces: Pieces) -> Fetch:
    regions, size = pieces.regions, pieces.regions.block_bytes
    block = pieces.blocks(between=True)
    of, number = block.T
    length = np.minimum(size, regions.size_bytes[of] - number * size)
    start = regions.offset_bytes[of] + number * size
    stop = np.cumsum(length)
    breaks = np.flatnonzero(np.append(True, start[1:] != (start + length)[:-1]))
    first = pieces.offset // size
    held = np.searchsorted(of * _WORD + number, pieces.region * _WORD + first)
    offset = (stop - length)[held] + pieces.offset - first * size
    return Fetch(start[breaks], np.add.reduceat(length, breaks), _out_of_buffer(pieces, offset), block, stop)


def _out_of_buffer(pieces: Pieces, offset: np.ndarray) -> Pieces:
    """The same copies out of a buffer in which they begin at int64[P] `offset`."""
    zero, none = np.zeros(1, np.int64), np.zeros(0, np.uint64)
    buffer = Regions(zero, zero.astype(np.uint64), zero, zero, np.zeros(2, np.int64), none)
    return replace(pieces, regions=buffer, region=np.zeros(len(pieces), np.int32), offset=offset)
