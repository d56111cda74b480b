"""Carries out pieces between byte arrays of this process: a few large copies, or very many small ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from earl.dispatch.describe.pieces import Pieces

# Up to this size an assignment between memoryviews takes less than making two arrays; it holds the GIL.
_SMALL_RUN_BYTES = 1 << 16
_WORDS = tuple(np.dtype(f"u{size}") for size in (8, 4, 2, 1))
# A trainer rank publishes from two slots in turn.
_PLACES_KEPT = 2


def copy(memory: np.ndarray, pieces: Pieces) -> None:
    """Fills the pieces' buffers from uint8 `memory`, in which their regions' offsets count."""
    _move(pieces, memory, pieces.start, pieces.stride, None, pieces.target_offset, pieces.target_stride)


def gather(memory: np.ndarray, pieces: Pieces, into: np.ndarray) -> None:
    """Copies the pieces end to end into uint8 `into`, run after run, instead of their buffers."""
    _move(pieces, memory, pieces.start, pieces.stride, into, _packed(pieces), pieces.run)


def scatter(payload: np.ndarray, pieces: Pieces) -> None:
    """Copies what `gather` laid end to end into the pieces' buffers."""
    _move(pieces, payload, _packed(pieces), pieces.run, None, pieces.target_offset, pieces.target_stride)


def _packed(pieces: Pieces) -> np.ndarray:
    """int64[P]: where each piece begins when all are stored end to end."""
    sizes = pieces.rows * pieces.run
    return np.cumsum(sizes) - sizes


def _move(
    pieces: Pieces,
    source: np.ndarray,
    start: np.ndarray,
    stride: np.ndarray,
    into: np.ndarray | None,
    target_offset: np.ndarray,
    target_stride: np.ndarray,
) -> None:
    """Copies the pieces' runs. into: uint8; None: the pieces' buffers."""
    small_source, small_targets = source.data, dict[int, memoryview]()
    rows = _rows(pieces, start, stride, target_offset, target_stride)
    for buffer, to, target_step, first, step, count, run in rows:
        target = pieces.buffers[buffer] if into is None else into
        if count == 1 and run <= _SMALL_RUN_BYTES:
            if buffer not in small_targets:
                small_targets[buffer] = target.data
            small_targets[buffer][to : to + run] = small_source[first : first + run]
            continue
        np.copyto(*_pair(target, to, target_step, source, first, step, count, run))


def _rows(
    pieces: Pieces,
    start: np.ndarray,
    stride: np.ndarray,
    target_offset: np.ndarray,
    target_stride: np.ndarray,
) -> Iterator[tuple[int, ...]]:
    """(buffer, target offset and stride, start, stride, rows, run) of each piece."""
    columns = (pieces.buffer, target_offset, target_stride, start, stride, pieces.rows, pieces.run)
    return zip(*(column.tolist() for column in columns), strict=True)


Pair = tuple[np.ndarray, np.ndarray]


class Views:
    """The array views by which the same pieces are copied again and again, out of one place or another.

    Making those of a piece takes two microseconds, all of it with the GIL held. reach: int64[N], how far the
    pieces reach into each region.
    """

    def __init__(self, pieces: Pieces) -> None:
        self.reach = pieces.reach
        self._pairs: WeakKeyDictionary[Any, dict[bytes, list[Pair]]] = WeakKeyDictionary()
        self._blocks: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        """Number of places for which views are kept."""
        return sum(map(len, self._pairs.values()))

    def blocks(self, pieces: Pieces) -> np.ndarray:
        """int64[B, 2]: the checksum blocks that these pieces touch."""
        if self._blocks is None or self._blocks[0] != pieces.regions.block_bytes:
            self._blocks = pieces.regions.block_bytes, pieces.blocks()
        return self._blocks[1]

    def pairs(self, owner: Any, memory: np.ndarray, pieces: Pieces, limit_bytes: int) -> list[Pair]:
        """(target, source) arrays, of equal shape and at most limit_bytes each, that together are the pieces.

        memory: uint8, in which the regions' offsets count; not kept longer than `owner` lives.
        """
        places = self._pairs.setdefault(owner, {})
        place = pieces.regions.offset_bytes.tobytes()
        if place not in places:
            while len(places) >= _PLACES_KEPT:
                del places[next(iter(places))]
            places[place] = [pair for part in pieces.split(limit_bytes) for pair in _pairs(memory, part)]
        return places[place]


def _pairs(memory: np.ndarray, pieces: Pieces) -> Iterator[Pair]:
    rows = _rows(pieces, pieces.start, pieces.stride, pieces.target_offset, pieces.target_stride)
    for buffer, to, target_step, start, step, count, run in rows:
        yield _pair(pieces.buffers[buffer], to, target_step, memory, start, step, count, run)


def _pair(
    target: np.ndarray,
    to: int,
    target_step: int,
    source: np.ndarray,
    start: int,
    step: int,
    count: int,
    run: int,
) -> Pair:
    """(target, source) of one piece: [count, words of a run] each, over uint8 arrays."""
    word = _word(run, step, target_step)
    shape = (count, run // word.itemsize)
    return (
        np.ndarray(shape, word, target, to, (target_step, word.itemsize)),
        np.ndarray(shape, word, source, start, (step, word.itemsize)),
    )


def _word(run: int, stride: int, target_stride: int) -> np.dtype:
    """The longest word that divides all three."""
    return next(word for word in _WORDS if not (run | stride | target_stride) % word.itemsize)
