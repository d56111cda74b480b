"""What every transport promises.

`read` copies pieces of one arena into the caller's arrays. When it returns, the bytes are those
that were published: generations were re-checked after copying, checksums where asked for. When it
raises or is cancelled, nothing writes into the targets any more, whatever the peer does. A peer's
death is PeerLost within 2 s; no failure of a peer harms reads from others.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from earl.dispatch.descriptor import ArenaRef, RegionRef, row_major


@dataclass(frozen=True, slots=True)
class Piece:
    """One strided copy out of a region: element i of the source lies at offset + i·strides.

    target: writable array whose shape and dtype are the source's too; strides in bytes.
    """

    region: RegionRef
    offset_bytes: int
    strides_bytes: tuple[int, ...]
    target: np.ndarray

    @property
    def size_bytes(self) -> int:
        return self.target.nbytes

    @property
    def stop_bytes(self) -> int:
        """One past the last byte read, from the region's start."""
        extent = sum((n - 1) * s for n, s in zip(self.target.shape, self.strides_bytes, strict=True))
        return self.offset_bytes + extent + self.target.itemsize

    @property
    def contiguous(self) -> bool:
        """True when both sides are one run of bytes in the same order."""
        if not self.target.flags.c_contiguous:
            return False
        expected = row_major(self.target.shape, self.target.itemsize)
        return all(
            n == 1 or s == e for n, s, e in zip(self.target.shape, self.strides_bytes, expected, strict=True)
        )

    def blocks(self) -> range:
        """The checksum blocks of the region that this piece touches."""
        block_bytes = self.region.checksum_block_bytes
        return range(self.offset_bytes // block_bytes, -(-self.stop_bytes // block_bytes))

    def split(self, limit_bytes: int) -> Iterator[Piece]:
        """The same copy in pieces of at most `limit_bytes` or one element, cut from the outside in."""
        if self.size_bytes <= limit_bytes or self.target.size <= 1:
            yield self
            return
        dim = next(i for i, n in enumerate(self.target.shape) if n > 1)
        length = self.target.shape[dim]
        rows = max(1, limit_bytes // (self.size_bytes // length))
        for first in range(0, length, rows):
            part = Piece(
                self.region,
                self.offset_bytes + first * self.strides_bytes[dim],
                self.strides_bytes,
                self.target[(slice(None),) * dim + (slice(first, first + rows),)],
            )
            yield from part.split(limit_bytes)


class Transport(ABC):
    """One way to read arenas. `path` is what receipts say was used."""

    path: ClassVar[str]

    @abstractmethod
    async def read(self, arena: ArenaRef, pieces: Sequence[Piece], *, verify: bool) -> None:
        """Fill every target from `arena`; verify: against the regions' checksums, where they have any.

        Raises RegionGone, PeerLost, ChecksumMismatch, TransportUnavailable.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release mappings and connections; reads under way fail with PeerLost or end first."""


async def settle(*futures: asyncio.Future) -> None:
    """Wait until all are done even if this task is cancelled meanwhile; outcomes are left in them.

    For work that cannot be taken back and whose end is near and bounded.
    """
    while waiting := [future for future in futures if not future.done()]:
        try:
            await asyncio.wait(waiting)
        except asyncio.CancelledError:
            continue
    for future in futures:
        failure_of(future)


def failure_of(future: asyncio.Future) -> BaseException | None:
    """The exception of a future that is done; looking at it also ends asyncio's warning about it."""
    return future.exception() if future.done() and not future.cancelled() else None


async def run_all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run together; on the first failure cancel the others, wait for them all, raise that failure."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
