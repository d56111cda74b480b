"""Exchanges the parts of a round between ranks while tensors move (reshard.py).

Ranks of one host write into memory that the others map, and copy from there to where it belongs; all others,
and those whose tensors lie on devices, exchange buffers by all_to_all. Either way a round is a collective.

    shared   own outbox, half n % 2 ← parts that go · barrier n · where they belong ← the others' outboxes

Two halves suffice: a half that is written for round n was last read in round n - 2, and a rank at the
barrier of round n - 1 is done with that.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from earl.dispatch.describe.regions import host_id
from earl.dispatch.plan.reshard_plan import ReshardPart
from earl.shm import RegionHandle, SharedRegion
from services.trainer.ranks.process_group import Group
from services.trainer.reshard.moving_tensor import MovingTensor

log = logging.getLogger(__name__)

_ALIGNMENT_BYTES = 16


class Exchange(ABC):
    """A way for parts of tensors from rank to rank. process_group: the default one if None."""

    def __init__(self, tensors: Sequence[MovingTensor], group: Group, process_group: Any) -> None:
        self._tensors, self._group, self._process_group = tensors, group, process_group

    @abstractmethod
    def held_bytes(self, batch: Sequence[ReshardPart]) -> int:
        """Memory of this rank that carrying these parts takes."""

    @abstractmethod
    def carry(self, batch: Sequence[ReshardPart]) -> int:
        """Exchanges these parts; returns the bytes that this rank sent. A collective."""


def open_exchange(
    tensors: Sequence[MovingTensor],
    batches: Sequence[Sequence[ReshardPart]],
    group: Group,
    process_group: Any,
) -> Exchange:
    """An exchange for all of these batches; process_group: the default one if None. A collective.

    Raises what the process group does when a rank is lost.
    """
    if group.device.type == "cpu" and group.size > 1 and batches:
        shared = _open_shared(tensors, batches, group, process_group)
        if shared is not None:
            return shared
    return _Collective(tensors, group, process_group)


class _BufferLayout:
    """The places of the parts that one rank sends or receives in its buffer, peer after peer.

    parts: each with its offset in bytes. splits: bytes of each peer's parts.
    """

    def __init__(
        self,
        batch: Sequence[ReshardPart],
        tensors: Sequence[MovingTensor],
        group: Group,
        rank: int,
        *,
        sends: bool,
    ):
        by_peer: list[list[ReshardPart]] = [[] for _ in range(group.size)]
        for part in batch:
            piece = part.piece
            mine, peer = (piece.source, piece.target) if sends else (piece.target, piece.source)
            if mine == rank:
                by_peer[peer].append(part)
        self.parts: list[tuple[ReshardPart, int]] = []
        self.splits: list[int] = []
        self.size_bytes = 0
        for parts in by_peer:
            begin = self.size_bytes
            for part in parts:
                self.parts.append((part, self.size_bytes))
                payload_bytes = part.piece.box.size * tensors[part.tensor].item_bytes
                self.size_bytes += -(-payload_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            self.splits.append(self.size_bytes - begin)


def _packed(buffer: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    return buffer[offset : offset + like.nbytes].view(like.dtype).view(like.shape)


class _Collective(Exchange):
    """An exchange of buffers on the tensors' device, by all_to_all."""

    def _layout(self, batch: Sequence[ReshardPart], *, sends: bool) -> _BufferLayout:
        return _BufferLayout(batch, self._tensors, self._group, self._group.rank, sends=sends)

    def held_bytes(self, batch: Sequence[ReshardPart]) -> int:
        return self._layout(batch, sends=True).size_bytes + self._layout(batch, sends=False).size_bytes

    def carry(self, batch: Sequence[ReshardPart]) -> int:
        going, coming = self._layout(batch, sends=True), self._layout(batch, sends=False)
        sent = torch.empty(going.size_bytes, dtype=torch.uint8, device=self._group.device)
        received = torch.empty(coming.size_bytes, dtype=torch.uint8, device=self._group.device)
        for part, offset in going.parts:
            values = self._tensors[part.tensor].old.part(part.piece.box)
            _packed(sent, offset, values).copy_(values)
        dist.all_to_all_single(received, sent, coming.splits, going.splits, group=self._process_group)
        for part, offset in coming.parts:
            values = self._tensors[part.tensor].new.part(part.piece.box)
            values.copy_(_packed(received, offset, values))
        return going.size_bytes


class _Shared(Exchange):
    """An exchange through shared memory. outboxes: every rank's, uint8[2, bytes], by rank."""

    def __init__(
        self,
        tensors: Sequence[MovingTensor],
        group: Group,
        process_group: Any,
        outboxes: Sequence[torch.Tensor],
    ) -> None:
        super().__init__(tensors, group, process_group)
        self._outboxes = outboxes
        self._round = 0

    def held_bytes(self, batch: Sequence[ReshardPart]) -> int:
        return self._outboxes[self._group.rank].nbytes

    def carry(self, batch: Sequence[ReshardPart]) -> int:
        rank, half = self._group.rank, self._round % 2
        self._round += 1
        sent_bytes = 0
        layouts = [
            _BufferLayout(batch, self._tensors, self._group, each, sends=True)
            for each in range(self._group.size)
        ]
        for part, offset in layouts[rank].parts:
            values = self._tensors[part.tensor].old.part(part.piece.box)
            _packed(self._outboxes[rank][half], offset, values).copy_(values)
            sent_bytes += values.nbytes
        dist.all_reduce(torch.zeros(1), group=self._process_group)
        for source, outbox in zip(layouts, self._outboxes, strict=True):
            for part, offset in source.parts:
                if part.piece.target == rank:
                    values = self._tensors[part.tensor].new.part(part.piece.box)
                    values.copy_(_packed(outbox[half], offset, values))
        return sent_bytes


def _open_shared(
    tensors: Sequence[MovingTensor],
    batches: Sequence[Sequence[ReshardPart]],
    group: Group,
    process_group: Any,
) -> _Shared | None:
    """An exchange through shared memory; None if a rank cannot map another's. A collective."""
    sizes = [
        2 * max(_BufferLayout(batch, tensors, group, rank, sends=True).size_bytes for batch in batches)
        for rank in range(group.size)
    ]
    try:
        region = SharedRegion.create("earl-outbox", sizes[group.rank])
    except OSError as error:
        log.warning("ranks exchange tensors by messages, for there is no shared memory: %s", error)
        region = None
    try:
        offers = group.gather(_offer(region) if region is not None else b"")
        outboxes = [_attach(offer, size) for offer, size in zip(offers, sizes, strict=True)]
        # Nobody ends sharing what another is about to attach to.
        complete = group.agree(all(outbox is not None for outbox in outboxes))
    finally:
        if region is not None:
            region.end_sharing()
    if not complete:
        return None
    return _Shared(tensors, group, process_group, [outbox for outbox in outboxes if outbox is not None])


def _offer(region: SharedRegion) -> bytes:
    """A region's host and handle, by which others attach to it."""
    return host_id().encode() + b" " + region.handle.encode()


def _attach(offer: bytes, size_bytes: int) -> torch.Tensor | None:
    """A rank's outbox, uint8[2, size_bytes / 2]; None if it has none, is of another host, or, which is
    logged, cannot be mapped here."""
    host, _, encoded = offer.partition(b" ")
    if host != host_id().encode():
        return None
    handle = RegionHandle.decode(encoded)
    try:
        region = SharedRegion.attach(handle, size_bytes)
    except OSError as error:
        log.warning(
            "ranks exchange tensors by messages, for the memory of process %d of this host cannot be mapped: "
            "%s", handle.pid, error,
        )  # fmt: skip
        return None
    if not size_bytes:
        return torch.empty(2, 0, dtype=torch.uint8)
    return torch.frombuffer(region.data, dtype=torch.uint8).view(2, -1)
