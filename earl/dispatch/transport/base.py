"""The contract of every transport.

`read` copies pieces of one arena into the caller's buffers. When it returns, the bytes are those
that were published: generations were re-checked after copying, checksums compared where requested. When it
raises or is cancelled, nothing writes into the buffers any more, whatever the peer does. The death of
a peer's process is PeerLost at once, because its connection ends. Of a peer that is frozen, or cut off,
no heartbeat arrives: after 2 s that is PeerUnreachable, and it is asked again, at most a second later each
time, until the reader's deadline. No failure of a peer harms reads from others.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from typing import Any

from earl.dispatch.describe.pieces import Pieces
from earl.dispatch.describe.regions import ArenaRef
from earl.errors import ChecksumMismatch, PeerUnreachable


class Transport(ABC):
    """One way to read arenas. `path` is its name in receipts."""

    path: str

    @abstractmethod
    async def read(self, arena: ArenaRef, pieces: Pieces, *, verify: bool) -> int:
        """Fills the pieces' buffers from `arena`. verify: compare with the published checksums, if any.

        Returns how many requests were sent again. Raises RegionGone, PeerLost, ChecksumMismatch,
        TransportUnavailable.
        """

    def path_to(self, arena: ArenaRef) -> str:
        """The name in receipts of what carries this arena's bytes."""
        return self.path

    def unreachable(self, arena: ArenaRef) -> PeerUnreachable | None:
        """The error of reads that a deadline ends while the arena's owner is silent; None if it is not."""
        return None

    @abstractmethod
    async def close(self) -> None:
        """Releases mappings and connections; reads in progress fail with PeerLost or end first."""


def refuse_mismatch(expected: int, actual: int, block: int, where: str) -> None:
    """Raises ChecksumMismatch naming the block."""
    if expected != actual:
        raise ChecksumMismatch(
            f"block {block} of {where} has xxh3 {actual:016x}, published was {expected:016x}",
            "read again; if it stays, the owner's memory or the network is faulty",
        )


async def settle(*futures: asyncio.Future) -> None:
    """Waits until all are done, even if this task is cancelled meanwhile; results stay in the futures.

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
    """The exception of a future that is done; retrieving it also ends asyncio's warning about it."""
    return future.exception() if future.done() and not future.cancelled() else None


async def run_all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs coroutines together.

    On the first failure it cancels the others, waits for all, and raises that failure.
    """
    some = list(coroutines)
    if len(some) == 1:
        return await some[0]  # no task: a turn of the loop less
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in some:
                group.create_task(coroutine)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
