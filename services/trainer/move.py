"""Tensors move from one cut over the ranks to another, over the same ranks: no gather, no disk.

    tensor after tensor: its new memory is taken ─► what stays on its rank is copied
                         ─► the rest in rounds of all_to_all ─► its old memory is freed

Promise: no rank needs more than CHUNK_BYTES a few times over beside the larger of both cuts, and one
tensor; what a round left is whole in one place. A rank that dies ends the collective of the others: they
leave, and the group starts again from its checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from earl.dispatch.exchange import Part, Piece, Recut, exchange, rounds
from earl.dispatch.layout import Box
from services.trainer.group import Group

CHUNK_BYTES = 32 << 20
_ALIGNMENT_BYTES = 16


class Memory:
    """A rank's box of a tensor, whose memory is given back and taken again: every view of it follows.

    local: the tensor as it is now. make: allocates it, the first time that it is taken; None if it is there.
    values: shaped as the box; only while the memory is held.
    """

    def __init__(
        self,
        local: Callable[[], torch.Tensor],
        box: Box,
        item_bytes: int,
        make: Callable[[], None] | None = None,
    ) -> None:
        self.box = box
        self._local, self._make = local, make
        self._payload_bytes = box.size * item_bytes
        self.size_bytes = self._payload_bytes if make is not None else local().untyped_storage().nbytes()

    @property
    def values(self) -> torch.Tensor:
        return self._local().view(self.box.shape)

    def free(self) -> None:
        self._local().untyped_storage().resize_(0)

    def take(self) -> None:
        """What it holds then is arbitrary, but zeros where the box does not reach (FSDP2 pads)."""
        if self._make is not None:
            self._make()
            self._make = None
            self.size_bytes = self._local().untyped_storage().nbytes()
        local = self._local()
        storage = local.untyped_storage()
        storage.resize_(self.size_bytes)
        if self.size_bytes > self._payload_bytes:
            torch.empty(0, dtype=torch.uint8, device=local.device).set_(storage).zero_()


@dataclass(frozen=True, slots=True)
class Column:
    """One tensor on this rank: `old` is recut.before of this rank, `new` is its recut.after."""

    recut: Recut
    old: Memory
    new: Memory

    def reversed(self) -> Column:
        """The way back."""
        return Column(self.recut.reversed(), self.new, self.old)


@dataclass(frozen=True, slots=True)
class Moved:
    """columns: how many moved, from the first on; fewer than all if the time was over.

    sent_bytes: of this rank over the wire. peak_extra_bytes: on this rank, beyond the larger cut.
    """

    columns: int
    sent_bytes: int
    peak_extra_bytes: int
    seconds: float


@torch.no_grad()
def move(
    columns: Sequence[Column],
    group: Group,
    wire: Any = None,
    *,
    until: float = float("inf"),
    chunk_bytes: int = CHUNK_BYTES,
) -> Moved:
    """Fill every column's new memory from the others' old; the latter is freed. A collective.

    wire: the process group that carries the values; the default one if None. until: by time.monotonic();
    then the columns that were begun are ended, and no more. Raises LayoutGap; what the process group does.
    """
    started = time.perf_counter()
    recuts = [column.recut for column in columns]
    pieces = exchange(recuts)
    walk = _Walk(columns, pieces, group.rank)
    sent_bytes = 0
    for batch in rounds(recuts, pieces, chunk_bytes):
        walk.end(batch[0].tensor)
        if batch[0].tensor >= walk.begun and not group.agree(time.monotonic() < until):
            break
        walk.begin(batch[-1].tensor + 1)
        sent_bytes += _round(batch, columns, group, wire, walk)
    else:
        walk.end(walk.begun)
        if group.agree(time.monotonic() < until):
            walk.begin(len(columns))
    return Moved(walk.begun, sent_bytes, walk.peak_extra_bytes, time.perf_counter() - started)


class _Walk:
    """How far the columns are begun and ended, and what is held meanwhile."""

    def __init__(self, columns: Sequence[Column], pieces: Sequence[Sequence[Piece]], rank: int) -> None:
        self._columns, self._pieces, self._rank = columns, pieces, rank
        self.begun = 0
        # Those whose old memory the rounds still need.
        self._open: list[int] = []
        self._bytes = self._most = sum(column.old.size_bytes for column in columns)
        self._before = self._bytes

    def begin(self, stop: int) -> None:
        """Columns up to `stop` have their memory and what was on this rank before."""
        for number in range(self.begun, stop):
            column = self._columns[number]
            column.new.take()
            self.hold(column.new.size_bytes)
            for piece in self._pieces[number]:
                if piece.source == piece.target == self._rank:
                    _at(column.new, piece.box).copy_(_at(column.old, piece.box))
            if any(piece.source != piece.target for piece in self._pieces[number]):
                self._open.append(number)
            else:
                # One after the other: together they could need twice the memory.
                self._free(column)
        self.begun = stop

    def end(self, stop: int) -> None:
        """Columns before `stop` have all that they need."""
        for number in [number for number in self._open if number < stop]:
            self._free(self._columns[number])
            self._open.remove(number)

    def _free(self, column: Column) -> None:
        column.old.free()
        self.hold(-column.old.size_bytes)

    def hold(self, more_bytes: int) -> None:
        self._bytes += more_bytes
        self._most = max(self._most, self._bytes)

    @property
    def peak_extra_bytes(self) -> int:
        after = sum(column.new.size_bytes for column in self._columns)
        return self._most - max(self._before, after)


def _round(batch: Sequence[Part], columns: Sequence[Column], group: Group, wire: Any, walk: _Walk) -> int:
    """Exchange these parts; returns the bytes that this rank sent."""
    going, outs, out_bytes = _laid(batch, columns, group, sends=True)
    coming, ins, in_bytes = _laid(batch, columns, group, sends=False)
    walk.hold(out_bytes + in_bytes)
    sent = torch.empty(out_bytes, dtype=torch.uint8, device=group.device)
    received = torch.empty(in_bytes, dtype=torch.uint8, device=group.device)
    for part, offset in going:
        values = _at(columns[part.tensor].old, part.piece.box)
        _packed(sent, offset, values).copy_(values)
    dist.all_to_all_single(received, sent, ins, outs, group=wire)
    for part, offset in coming:
        values = _at(columns[part.tensor].new, part.piece.box)
        values.copy_(_packed(received, offset, values))
    walk.hold(-out_bytes - in_bytes)
    return out_bytes


def _laid(
    batch: Sequence[Part], columns: Sequence[Column], group: Group, *, sends: bool
) -> tuple[list[tuple[Part, int]], list[int], int]:
    """(this rank's parts and where each lies in the buffer, bytes of each peer's, bytes in all)."""
    by_peer: list[list[Part]] = [[] for _ in range(group.size)]
    for part in batch:
        piece = part.piece
        mine, peer = (piece.source, piece.target) if sends else (piece.target, piece.source)
        if mine == group.rank:
            by_peer[peer].append(part)
    laid: list[tuple[Part, int]] = []
    splits: list[int] = []
    offset = 0
    for parts in by_peer:
        begin = offset
        for part in parts:
            laid.append((part, offset))
            size_bytes = part.piece.box.size * columns[part.tensor].recut.item_bytes
            offset += -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        splits.append(offset - begin)
    return laid, splits, offset


def _packed(buffer: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    size_bytes = like.numel() * like.element_size()
    return buffer[offset : offset + size_bytes].view(like.dtype).view(like.shape)


def _at(memory: Memory, box: Box) -> torch.Tensor:
    return memory.values[box.relative_to(memory.box.start).slices()]


def boxes_by_rank(boxes: Sequence[Box], group: Group) -> list[tuple[Box, ...]]:
    """This rank's box of each tensor → every rank's, by rank. A collective."""
    mine = json.dumps([[box.start, box.stop] for box in boxes]).encode()
    ranks = [
        [Box(tuple(start), tuple(stop)) for start, stop in json.loads(said)] for said in group.gather(mine)
    ]
    return list(zip(*ranks, strict=True))
