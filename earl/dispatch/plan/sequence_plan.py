"""Packed ragged sequences: columns of different dtypes that share one index, dealt over producers. Pure.

    producer's column   │ seq 7      │ seq 2   │ seq 9 │     offsets int64[B + 1]: 0, 12, 21, 28
    consumer's column   │ 9: chunk r, chunk 2cp-1-r │ 7: … │   the same for tokens, masks, log-probs, …

A rank's slice of sequences is ranges of one dimension, so one plan serves all columns: copies of rows
`source` to `target`, whatever a row's dtype and width. Everything is arrays: no object per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from earl.dispatch.plan.balance import deal
from earl.dispatch.plan.class_plan import CopyBlock, Reads, per_owner
from earl.errors import LayoutError, LayoutGap


@dataclass(frozen=True, slots=True, eq=False)
class RaggedIndex:
    """The place of each sequence. Entries are sorted by sequence; replicas of one are adjacent.

    sequence: int64[E]. peer: int32[E], index into owners. start, length: int64[E], rows of its columns.
    """

    owners: tuple[str, ...]
    sequence: np.ndarray
    peer: np.ndarray
    start: np.ndarray
    length: np.ndarray


@dataclass(frozen=True, slots=True)
class ContextSlice:
    """Rank `rank` of `size` context-parallel ranks: zigzag chunks of each sequence; size 1: all of it."""

    rank: int = 0
    size: int = 1

    def of(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(start, stop), each int64[M, chunks]: this rank's rows of sequences of these lengths (int64[M]).

        Chunks follow torch.chunk: a short sequence leaves the last ones empty.
        """
        if not 0 <= self.rank < self.size:
            raise LayoutError(f"context-parallel rank {self.rank} of {self.size}", "use 0 <= rank < size")
        if self.size == 1:
            return np.zeros((len(lengths), 1), np.int64), lengths[:, None].astype(np.int64)
        step = -(-lengths // (2 * self.size))[:, None]
        chunks = np.array([self.rank, 2 * self.size - 1 - self.rank])
        return np.minimum(chunks * step, lengths[:, None]), np.minimum((chunks + 1) * step, lengths[:, None])


@dataclass(frozen=True, slots=True, eq=False)
class BatchReads:
    """reads: one block whose tensors are the columns. offsets: int64[M + 1], of the reader's own columns."""

    reads: Reads
    offsets: np.ndarray


def plan_batch(
    index: RaggedIndex,
    sequences: np.ndarray,
    column_bytes: Sequence[int],
    context: ContextSlice | None = None,
    *,
    priority: np.ndarray | None = None,
    cost: np.ndarray | None = None,
    loads: np.ndarray | None = None,
) -> BatchReads:
    """The reads of one rank: `sequences` int64[M] in the order in which it packs them, its slice of each.

    column_bytes: bytes of a row in each column. priority: int32[M], lower is read sooner (the micro-batch).
    cost: float64[owners], inf where one cannot be read; loads: int64[owners], bytes planned already.
    Raises LayoutGap naming a sequence and its rows, LayoutError.
    """
    sequences = np.asarray(sequences, np.int64)
    costs = per_owner("cost", cost, len(index.owners), np.float64)
    total = per_owner("loads", loads, len(index.owners), np.int64)
    soon = per_owner("priority", priority, len(sequences), np.int32)
    row_bytes = int(sum(column_bytes))
    entry = _entries(index, sequences, costs, total, row_bytes)
    lengths = index.length[entry]
    start, stop = (context or ContextSlice()).of(lengths)
    extent = stop - start
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(extent.sum(axis=1))])
    chunks = extent.shape[1]
    extent = extent.ravel()
    target = np.cumsum(extent) - extent
    source = (index.start[entry][:, None] + start).ravel()
    peer = np.repeat(index.peer[entry], chunks)
    soon = np.repeat(soon, chunks)
    kept = np.flatnonzero(extent)
    peer, soon, source, target, extent = (a[kept] for a in (peer, soon, source, target, extent))
    new = np.ones(len(kept), bool)
    # The target has no gaps: neighbours are joined where their source has none either.
    new[1:] = (peer[1:] != peer[:-1]) | (soon[1:] != soon[:-1]) | (source[1:] != (source + extent)[:-1])
    first = np.flatnonzero(new)
    if len(first):
        extent = np.add.reduceat(extent, first)
    block = CopyBlock(
        0,
        np.arange(len(column_bytes), dtype=np.int64),
        peer[first],
        source[first, None],
        target[first, None],
        extent[:, None],
        np.asarray(column_bytes, np.int64),
        soon[first],
    )
    np.add.at(total, block.peer, extent * row_bytes)
    return BatchReads(Reads(index.owners, (block,), total), offsets)


def _entries(
    index: RaggedIndex, sequences: np.ndarray, cost: np.ndarray, loads: np.ndarray, row_bytes: int
) -> np.ndarray:
    """int64[M]: which entry serves each sequence: the nearest owners share by bytes, loads counted."""
    first = np.searchsorted(index.sequence, sequences, "left")
    held = np.searchsorted(index.sequence, sequences, "right") - first
    if (held == 0).any():
        missing = int(np.flatnonzero(held == 0)[0])
        raise LayoutGap(
            f"no owner holds sequence {sequences[missing]}; missing are {(held == 0).sum()} of {len(held)}",
            "publish it, or wait for it",
        )
    most = int(held.max(initial=1))
    # Short lists of replicas are filled up with their last one, at no finite cost.
    nth = np.arange(most)[None, :]
    entries = first[:, None] + np.minimum(nth, held[:, None] - 1)
    costs = np.where(nth < held[:, None], cost[index.peer[entries]], np.inf)
    nearest = costs.min(axis=1)
    if not np.isfinite(nearest).all():
        unread = int(np.flatnonzero(~np.isfinite(nearest))[0])
        entry = int(first[unread])
        stop = index.start[entry] + index.length[entry]
        raise LayoutGap(
            f"no owner that can be read holds sequence {sequences[unread]}, [{index.start[entry]}:{stop}] of "
            f"{index.owners[index.peer[entry]]}",
            "wait for it, or drop the sequence",
        )
    if most == 1:
        return first
    near = costs == nearest[:, None]
    chosen = entries[np.arange(len(entries)), near.argmax(axis=1)]
    shared = np.flatnonzero(near.sum(axis=1) > 1)
    peers = np.where(near, index.peer[entries], -1)[shared]
    sets, of_set = np.unique(np.sort(peers, axis=1), axis=0, return_inverse=True)
    loads = loads.copy()
    alone = np.setdiff1d(np.arange(len(entries)), shared)
    np.add.at(loads, index.peer[chosen[alone]], index.length[chosen[alone]] * row_bytes)
    for number, holders in enumerate(sets):
        holders = holders[holders >= 0]
        members = np.flatnonzero(of_set.ravel() == number)
        sizes = index.length[first[shared[members]]] * row_bytes
        served = holders[deal(sizes, loads[holders])]
        chosen[shared[members]] = entries[shared[members], (peers[members] == served[:, None]).argmax(axis=1)]
        np.add.at(loads, served, sizes)
    return chosen
