"""Reads of many whole sequences: from their keys and their owners' records to pieces of each arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from earl.dispatch.describe.descriptor import SequenceRecords
from earl.dispatch.describe.pieces import Pieces, flat_bytes
from earl.dispatch.describe.regions import host_id
from earl.dispatch.plan.sequence_plan import ContextSlice, RaggedIndex, plan_batch
from earl.dispatch.read.resolve import ReadPlan
from earl.errors import LayoutError


@dataclass(frozen=True, slots=True, eq=False)
class SequenceRead:
    """A read of columns of M sequences, end to end in the order of `keys`, "<owner's key>#<sequence>" each.

    rows: int64[M], the rows that each sequence must have. into: arrays by column, one-dimensional and
    contiguous, as long as all rows, or this rank's `context` slices of them, together. priority: int32[M],
    lower is read sooner.
    """

    keys: Sequence[str]
    rows: np.ndarray
    into: Mapping[str, np.ndarray]
    context: ContextSlice | None = None
    priority: np.ndarray | None = None

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.keys):
            raise LayoutError(
                f"{len(self.rows)} counts of rows for {len(self.keys)} sequences", "give one for each"
            )

    def by_owner(self) -> ByOwner:
        """The sequences under each owner's key."""
        names: dict[str, list[str]] = {}
        numbers: dict[str, int] = {}
        places: list[tuple[int, int]] = []
        for key in self.keys:
            owner, _, name = key.partition("#")
            held = names.setdefault(owner, [])
            places.append((numbers.setdefault(owner, len(numbers)), len(held)))
            held.append(name)
        peer, nth = np.array(places, np.int64).reshape(-1, 2).T
        return ByOwner(names, peer, nth)


@dataclass(frozen=True, slots=True, eq=False)
class ByOwner:
    """A read's M sequences grouped by owner. names: sequences by owner's key, in order.

    peer, nth: int64[M], for each sequence the number of its owner, and its position among that owner's.
    """

    names: Mapping[str, Sequence[str]]
    peer: np.ndarray
    nth: np.ndarray


def resolve_sequences(
    read: SequenceRead, owners: ByOwner, known: Mapping[str, SequenceRecords], copies: ReadPlan
) -> None:
    """Appends the pieces of this read. Raises LayoutGap, LayoutError."""
    records = [known[owner] for owner in owners.names]
    peer, nth = owners.peer, owners.nth
    first = np.cumsum([0, *(len(held) for held in records)])
    entry = first[peer] + nth
    rows = np.concatenate([np.zeros(0, np.int64), *(held.rows for held in records)])[entry]
    other = np.flatnonzero(rows != read.rows)
    if len(other):
        i = int(other[0])
        raise LayoutError(
            f"{read.keys[i]} has {rows[i]} rows, not {read.rows[i]}", "it was published by another attempt"
        )
    # Rows are numbered through all sequences, with a gap after each, so that no copy spans two.
    start = np.cumsum(rows + 1) - (rows + 1)
    names = list(read.into)
    wide = [read.into[name].itemsize for name in names]
    index = RaggedIndex(tuple(owners.names), np.arange(len(rows)), peer.astype(np.int32), start, rows)
    cost = np.array([float(held.arena.host != host_id()) for held in records])
    batch = plan_batch(index, index.sequence, wide, read.context, priority=read.priority, cost=cost)
    for name in names:
        _check_column(name, read.into[name], int(batch.offsets[-1]))
    (block,) = batch.reads.blocks
    source, target, extent = (each[:, 0] for each in (block.source, block.target, block.extent))
    priority, from_peer = block.priority, block.peer
    sequence = np.searchsorted(start, source, "right") - 1
    within = source - start[sequence]
    buffers = tuple(flat_bytes(read.into[name]) for name in names)
    for number, held in enumerate(records):
        index_ = np.flatnonzero(from_peer == number)
        if not len(index_):
            continue
        region = nth[sequence[index_]]
        columns = held.column_offsets(names, [read.into[name].dtype for name in names])
        # Column by column, so that a stretch of a buffer is requested together; lower priorities first.
        count, each = len(index_), len(names)
        buffer = np.repeat(np.arange(each, dtype=np.int32), count)
        order = np.argsort(np.tile(priority[index_], each), kind="stable")
        buffer, copy, region = buffer[order], np.tile(index_, each)[order], np.tile(region, each)[order]
        items = np.array(wide, np.int64)[buffer]
        zeros = np.zeros(count * each, np.int64)
        pieces = Pieces(
            held.regions,
            region.astype(np.int32),
            columns[region, buffer] + within[copy] * items,
            zeros + 1,
            extent[copy] * items,
            zeros,
            buffers,
            buffer,
            target[copy] * items,
            zeros,
        )
        copies.add(held.arena, pieces)


def _check_column(name: str, into: np.ndarray, rows: int) -> None:
    if into.ndim != 1 or len(into) != rows or not into.flags.c_contiguous:
        raise LayoutError(
            f"column {name}: target {into.dtype} {into.shape} for {rows} rows",
            f"give a contiguous array of {rows} elements",
        )
