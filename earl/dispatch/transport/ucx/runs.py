"""A payload that lies in several places: sent from there, or received there, without a copy in between.

pieces ─► of long runs ──────────────────────────────► where they are ─┐
       └► of short ones ─► all of the piece end to end ─► a buffer ────┴► Runs, in the pieces' order
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from earl.dispatch.describe.pieces import Pieces, repeat_indices

_READ = 0x100  # PyBUF_READ
_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype, _view.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """table: uint64[N, 2], address and bytes of each (a ucp_dt_iov_t); held: what keeps them valid."""

    table: np.ndarray
    held: Any

    @property
    def nbytes(self) -> int:
        return int(self.table[:, 1].sum())


def digest(payload: np.ndarray | Runs) -> int:
    """xxh3-64 of its bytes end to end."""
    if isinstance(payload, np.ndarray):
        return xxhash.xxh3_64_intdigest(payload.data)
    state = xxhash.xxh3_64()
    for address, size in payload.table.tolist():
        state.update(_view(address, size, _READ))
    return state.intdigest()


def address_of(memory: np.ndarray) -> int:
    return memory.__array_interface__["data"][0]


def runs_of(
    pieces: Pieces,
    first: np.ndarray,
    stride: np.ndarray,
    short: np.ndarray,
    buffer: np.ndarray | None,
    held: Any,
) -> Runs:
    """All of `pieces`, those that are `short`, bool[P], end to end in `buffer`, if there are any.

    first: int64[P], address of each piece's first run; stride: int64[P], bytes from one run to the next.
    """
    sizes = pieces.rows * pieces.run
    if buffer is not None:
        through = np.where(short, sizes, 0)
        first = np.where(short, address_of(buffer) + np.cumsum(through) - through, first)
    rows, run = np.where(short, 1, pieces.rows), np.where(short, sizes, pieces.run)
    return Runs(spread(first, rows, run, stride).astype(np.uint64), (held, buffer))


def spread(first: np.ndarray, rows: np.ndarray, run: np.ndarray, stride: np.ndarray) -> np.ndarray:
    """int64[N, 2], where each run begins and its bytes, of P pieces: int64[P] each. Neighbours are joined."""
    index, nth = repeat_indices(rows)
    table = np.stack([first[index] + nth * stride[index], run[index]], axis=1)
    opens = np.ones(len(table), bool)
    opens[1:] = table[1:, 0] != table[:-1].sum(axis=1)
    first_run = np.flatnonzero(opens)
    return np.stack([table[first_run, 0], np.add.reduceat(table[:, 1], first_run)], axis=1)
