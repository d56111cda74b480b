"""The elements in which arrays differ from an earlier version of them, coded block by block. Pure.

    old, new ─► blocks of 65,536 elements, row-major ─► table: form, count, bytes of positions, digest
                                                    └─► body: new values, then their positions, by block

A block's positions have the form that takes the fewest bytes. The digest is of the whole block in the new
version, whatever changed: who applies the changes compares it, and then has what a read of the whole gives.

| form | positions of the changed elements |
|---|---|
| SAME | none: nothing changed |
| GAPS | uint8: elements that did not change since the last one; 255: so many, and no value follows |
| INDICES | uint16: indices in the block |
| BITMAP | a bit for each element of the block |
| WHOLE | none: every element has a value |
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from earl.dispatch.memory.digests import digest
from earl.errors import ChangesUnusable

BLOCK_ELEMENTS = 1 << 16
# Columns of a table of blocks, int64[B, 4]; digests are 64 bits without a sign.
FORM, COUNT, POSITION_BYTES, DIGEST = range(4)
COLUMNS = 4
SAME, GAPS, INDICES, BITMAP, WHOLE = range(5)
_SKIP = 255
# Each block's part of the body begins at a multiple of this.
_ALIGNMENT_BYTES = 8
_REMEDY = "read the whole version"


def blocks_of(elements: int) -> int:
    """The number of blocks of an array of so many elements."""
    return -(-elements // BLOCK_ELEMENTS)


def code_changes(
    arrays: Iterable[tuple[np.ndarray, np.ndarray]], table: np.ndarray, body: np.ndarray
) -> int | None:
    """Codes arrays, each (old, new), contiguous and of one form; returns the bytes of body that it took.

    table: int64[B, 4], for all blocks of all arrays in order. body: uint8. None if the body is too short.
    """
    row = used = 0
    for old, new in arrays:
        flat_old, flat_new = _bits(old), _bits(new)
        for start in range(0, len(flat_new), BLOCK_ELEMENTS):
            stop = start + BLOCK_ELEMENTS
            block = flat_new[start:stop]
            form, values, positions = _coded(flat_old[start:stop], block)
            end = used + values.nbytes + positions.nbytes
            if end > len(body):
                return None
            body[used : used + values.nbytes] = values.view(np.uint8)
            body[used + values.nbytes : end] = positions.view(np.uint8)
            table[row, :DIGEST] = form, len(values), positions.nbytes
            table.view(np.uint64)[row, DIGEST] = digest(block.view(np.uint8).data)
            row, used = row + 1, _aligned(end)
    return used


def block_starts(table: np.ndarray, item_bytes: int) -> np.ndarray:
    """int64[B + 1]: the first byte of each block's part of the body, and the end of all.

    Raises ChangesUnusable for a table that no coding makes.
    """
    form, count, position_bytes = table[:, FORM], table[:, COUNT], table[:, POSITION_BYTES]
    bad = (form < SAME) | (form > WHOLE) | (count < 0) | (count > BLOCK_ELEMENTS)
    bad |= (position_bytes < 0) | (position_bytes > 2 * BLOCK_ELEMENTS)
    if bad.any():
        row = int(np.argmax(bad))
        raise ChangesUnusable(f"block {row} of changes is described by {table[row].tolist()}", _REMEDY)
    starts = np.zeros(len(table) + 1, np.int64)
    np.cumsum(_aligned(count * item_bytes + position_bytes), out=starts[1:])
    return starts


def changed_elements(
    row: np.ndarray, body: np.ndarray, size: int, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """(indices in the block, increasing, and new values) of a block of `size` elements.

    row: of the table. body: uint8, this block's part. Raises ChangesUnusable where positions are out of range
    or do not match the values.
    """
    form, count, position_bytes = row[:DIGEST].tolist()
    value_bytes = count * dtype.itemsize
    values = body[:value_bytes].view(dtype)
    positions = body[value_bytes : value_bytes + position_bytes]
    indices = _indices(form, positions, size)
    if indices is None or len(indices) != count or (count and int(indices[-1]) >= size):
        raise ChangesUnusable(
            f"a block of {size} elements has {count} changed values and {position_bytes} bytes of positions "
            f"of form {form}, which do not match",
            _REMEDY,
        )
    return indices, values


def refuse_other_digest(row: np.ndarray, block: np.ndarray) -> None:
    """Raises ChangesUnusable unless this is the block, contiguous, as it is in the new version."""
    actual = digest(block.view(np.uint8).data)
    expected = int(row.view(np.uint64)[DIGEST])
    if actual != expected:
        raise ChangesUnusable(
            f"with the changes a block has the digest {actual:016x}, not {expected:016x} as published",
            _REMEDY,
        )


def _coded(old: np.ndarray, new: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """(form, values, positions) of a block."""
    differs = old != new
    count, size = int(np.count_nonzero(differs)), len(new)
    none = np.zeros(0, np.uint8)
    if not count:
        return SAME, new[:0], none
    bitmap_bytes = -(-size // 8)
    if (size - count) * new.itemsize <= min(count, bitmap_bytes):
        return WHOLE, new, none
    if count >= bitmap_bytes:
        # Gaps take a byte each at least.
        return BITMAP, new[differs], np.packbits(differs)
    indices = np.flatnonzero(differs)
    values = new[indices]
    places = indices.astype(np.uint16)
    gaps = places.copy()
    gaps[1:] -= places[:-1] + np.uint16(1)
    # Divided as uint16, which is several times as fast as int64.
    skips = gaps // _SKIP
    gap_bytes = count + int(skips.sum(dtype=np.int64))
    if min(gap_bytes, 2 * count) > bitmap_bytes:
        return BITMAP, values, np.packbits(differs)
    if 2 * count < gap_bytes:
        return INDICES, values, places
    coded = np.full(gap_bytes, _SKIP, np.uint8)
    coded[np.cumsum(skips, dtype=np.int64) + np.arange(count)] = gaps - skips * np.uint16(_SKIP)
    return GAPS, values, coded


def _indices(form: int, positions: np.ndarray, size: int) -> np.ndarray | None:
    """The increasing indices that these positions mean; None if they mean none. They may be too large."""
    if form == GAPS:
        ends = positions < _SKIP
        reached = np.cumsum(np.add(positions, ends, dtype=np.uint16), dtype=np.int64)
        return reached[ends] - 1
    if form == INDICES and len(positions) % 2 == 0:
        indices = positions.view(np.uint16).astype(np.int64)
        return indices if (np.diff(indices) > 0).all() else None
    if form == BITMAP and len(positions) == -(-size // 8):
        return np.flatnonzero(np.unpackbits(positions, count=size))
    if form in (SAME, WHOLE) and not len(positions):
        return np.arange(size if form == WHOLE else 0)
    return None


def _bits(array: np.ndarray) -> np.ndarray:
    """The elements of a contiguous array as numbers that are equal where all bits are."""
    return array.reshape(-1).view(np.dtype(f"u{array.itemsize}"))


def _aligned(size_bytes):
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
