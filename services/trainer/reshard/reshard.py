"""Tensors move from one layout over the ranks to another, over the same ranks: no gather, no disk.

    tensor after tensor: its new memory is taken ─► what stays on its rank is copied
                         ─► the rest goes in rounds (exchange.py) ─► its old memory is freed
    where a rank's box is the same in both layouts, its memory stays, and only others read it

Promise: no rank needs more than CHUNK_BYTES a few times over in addition to the larger of both layouts, and
one tensor; what a round left is whole in one place. A rank that dies ends the collective of the others: they
leave, and the group starts again from its checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from earl.dispatch.layout.box import Box
from earl.dispatch.plan.reshard_plan import Reshard, ReshardPiece, plan_reshard, rounds
from services.trainer.ranks.process_group import Group
from services.trainer.reshard.exchange import open_exchange
from services.trainer.reshard.moving_tensor import MovingTensor, TensorMemory

# What a rank sends or receives in a round, by device: on a CPU fresh shared memory costs more than rounds do.
CHUNK_BYTES = {"cpu": 8 << 20, "cuda": 32 << 20}


@dataclass(frozen=True, slots=True)
class TensorMove:
    """This rank's share of a tensor of `shape`: its memory in the old layout, and in the new one."""

    name: str
    shape: tuple[int, ...]
    old: TensorMemory
    new: TensorMemory


@dataclass(frozen=True, slots=True)
class MoveReport:
    """The cost of a move. tensors: how many moved, from the first on; fewer than all if the time was over.

    sent_bytes: of this rank over the wire. peak_extra_bytes: on this rank, beyond the larger layout.
    """

    tensors: int
    sent_bytes: int
    peak_extra_bytes: int
    seconds: float


@torch.no_grad()
def move(
    tensors: Sequence[MovingTensor],
    group: Group,
    process_group: Any = None,
    *,
    until: float = float("inf"),
    chunk_bytes: int | None = None,
) -> MoveReport:
    """Fills every tensor's new memory from the others' old; the latter is freed. A collective.

    process_group: carries the values; the default one if None. until: by time.monotonic();
    then the tensors that were begun are ended, and no more. chunk_bytes: None is what CHUNK_BYTES has for the
    ranks' device. Raises LayoutGap; what the process group does.
    """
    started = time.perf_counter()
    reshards = [tensor.reshard for tensor in tensors]
    pieces = plan_reshard(reshards)
    batches = list(rounds(reshards, pieces, chunk_bytes or CHUNK_BYTES[group.device.type]))
    way = open_exchange(tensors, batches, group, process_group)
    walk = _Walk(tensors, pieces, group.rank)
    sent_bytes = 0
    for batch in batches:
        walk.end(batch[0].tensor)
        if batch[0].tensor >= walk.begun and not group.agree(time.monotonic() < until):
            break
        walk.begin(batch[-1].tensor + 1)
        held_bytes = way.held_bytes(batch)
        walk.hold(held_bytes)
        sent_bytes += way.carry(batch)
        walk.hold(-held_bytes)
    else:
        walk.end(walk.begun)
        if group.agree(time.monotonic() < until):
            walk.begin(len(tensors))
    return MoveReport(walk.begun, sent_bytes, walk.peak_extra_bytes, time.perf_counter() - started)


class _Walk:
    """Tracks which tensors are begun and ended, and the memory that is held meanwhile."""

    def __init__(
        self, tensors: Sequence[MovingTensor], pieces: Sequence[Sequence[ReshardPiece]], rank: int
    ) -> None:
        self._tensors, self._pieces, self._rank = tensors, pieces, rank
        self.begun = 0
        # Those whose old memory the rounds still need.
        self._open: list[int] = []
        self._bytes = self._most = sum(tensor.old.size_bytes for tensor in tensors)
        self._before = self._bytes

    def begin(self, stop: int) -> None:
        """Tensors up to `stop` have their memory and what was on this rank before."""
        for number in range(self.begun, stop):
            tensor = self._tensors[number]
            if tensor.in_place:
                continue
            tensor.new.take()
            self.hold(tensor.new.size_bytes)
            for piece in self._pieces[number]:
                if piece.source == piece.target == self._rank:
                    tensor.new.part(piece.box).copy_(tensor.old.part(piece.box))
            if any(piece.source != piece.target for piece in self._pieces[number]):
                self._open.append(number)
            else:
                # One after the other: together they could need twice the memory.
                self._free(tensor)
        self.begun = stop

    def end(self, stop: int) -> None:
        """Tensors before `stop` have all that they need: their old memory goes."""
        for number in [number for number in self._open if number < stop]:
            self._free(self._tensors[number])
            self._open.remove(number)

    def _free(self, tensor: MovingTensor) -> None:
        tensor.old.free()
        self.hold(-tensor.old.size_bytes)

    def hold(self, more_bytes: int) -> None:
        self._bytes += more_bytes
        self._most = max(self._most, self._bytes)

    @property
    def peak_extra_bytes(self) -> int:
        after = sum(tensor.new.size_bytes for tensor in self._tensors)
        return self._most - max(self._before, after)


def moving_tensors(moves: Sequence[TensorMove], group: Group) -> list[MovingTensor]:
    """Completes the tensors to move from this rank's share.

    Every rank gives the same tensors in the same order. A collective.
    """
    mine = json.dumps([[[m.box.start, m.box.stop] for m in (move.old, move.new)] for move in moves]).encode()
    by_rank = [json.loads(boxes) for boxes in group.gather(mine)]
    moving: list[MovingTensor] = []
    for number, share in enumerate(moves):
        before, after = (
            tuple(Box(*map(tuple, boxes[number][which])) for boxes in by_rank) for which in (0, 1)
        )
        reshard = Reshard(share.shape, share.old.item_bytes, before, after)
        moving.append(MovingTensor(reshard, share.old, share.new, share.name))
    return moving
