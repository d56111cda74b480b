"""Carrying out pieces between byte arrays of this process: a few large copies, or very many small ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from earl.dispatch.pieces import Pieces

# Up to here one assignment between memoryviews takes less than making two arrays; it holds the GIL.
_SMALL_RUN_BYTES = 1 << 16
_WORDS = tuple(np.dtype(f"u{size}") for size in (8, 4, 2, 1))


def copy(memory: np.ndarray, pieces: Pieces) -> None:
    """Fill the pieces' buffers from uint8 `memory`, in which their regions' offsets count."""
    first = pieces.regions.offset_bytes[pieces.region] + pieces.offset
    _move(pieces, lambda i: memory, first, pieces.stride, lambda i: pieces.buffers[i], pieces.at,
          pieces.target_stride)  # fmt: skip


def gather(memory: np.ndarray, pieces: Pieces, into: np.ndarray) -> None:
    """The same copies end to end into uint8 `into`, run after run."""
    first = pieces.regions.offset_bytes[pieces.region] + pieces.offset
    _move(pieces, lambda i: memory, first, pieces.stride, lambda i: into, _ends(pieces), pieces.run)


def scatter(payload: np.ndarray, pieces: Pieces) -> None:
    """What `gather` laid end to end into the pieces' buffers."""
    _move(pieces, lambda i: payload, _ends(pieces), pieces.run, lambda i: pieces.buffers[i], pieces.at,
          pieces.target_stride)  # fmt: skip


def _ends(pieces: Pieces) -> np.ndarray:
    """int64[P]: where each piece begins when all lie end to end."""
    sizes = pieces.rows * pieces.run
    return np.cumsum(sizes) - sizes


def _move(
    pieces: Pieces,
    source_of: Callable[[int], np.ndarray],
    first: np.ndarray,
    stride: np.ndarray,
    target_of: Callable[[int], np.ndarray],
    at: np.ndarray,
    target_stride: np.ndarray,
) -> None:
    views: dict[int, tuple[memoryview, memoryview]] = {}
    rows = zip(
        pieces.buffer.tolist(),
        pieces.rows.tolist(),
        pieces.run.tolist(),
        first.tolist(),
        stride.tolist(),
        at.tolist(),
        target_stride.tolist(),
        strict=True,
    )
    for buffer, count, run, start, step, to, target_step in rows:
        if count == 1 and run <= _SMALL_RUN_BYTES:
            if buffer not in views:
                views[buffer] = target_of(buffer).data, source_of(buffer).data
            target, source = views[buffer]
            target[to : to + run] = source[start : start + run]
            continue
        word = _word(run, step, target_step)
        shape = (count, run // word.itemsize)
        np.copyto(
            np.ndarray(shape, word, target_of(buffer), to, (target_step, word.itemsize)),
            np.ndarray(shape, word, source_of(buffer), start, (step, word.itemsize)),
        )


def _word(run: int, stride: int, target_stride: int) -> np.dtype:
    """The longest word that divides all three."""
    return next(word for word in _WORDS if not (run | stride | target_stride) % word.itemsize)
