"""A reader's connections to serving processes, whichever wire they use: by address, and when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from earl.dispatch.transport.base import failure_of, settle
from earl.dispatch.transport.handshake import check_dialled, until_closed
from earl.errors import PeerLost

_CONNECT_S = 10.0


class Closable(Protocol):
    """A connection that lives until either side ends it."""

    @property
    def alive(self) -> bool: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)
# (host:port, the peer's name in errors, this side's number of the connection) → an open connection.
Open = Callable[[str, str, int], Awaitable[C]]


class Connections(Generic[C]):
    """Connections are made on first use and kept; one that ended or failed is made again by the next use."""

    def __init__(self, open_connection: Open[C], *, trusted: bool) -> None:
        """trusted: whether peers off loopback may be connected to."""
        self._open = open_connection
        self._trusted = trusted
        self._tasks: dict[str, asyncio.Task[C]] = {}
        self._numbers = iter(range(1, 1 << 32))
        self._closed = False

    async def get(self, owner: str, address: str) -> C:
        """The connection to the serving process of `owner` at host:port.

        Raises PeerLost when it cannot be reached, TransportUnavailable.
        """
        task = self._tasks.get(address)
        if task is None or _has_ended(task):
            if self._closed:
                raise PeerLost(f"{owner}: the reader is closed", "make another")
            check_dialled(owner, address, trusted=self._trusted)
            task = asyncio.create_task(self._connect(address, f"{owner} at {address}"))
            task.add_done_callback(failure_of)
            self._tasks = {known: kept for known, kept in self._tasks.items() if not _has_ended(kept)}
            self._tasks[address] = task
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Closes all connections; attempts to connect are cancelled."""
        self._closed = True
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
            await settle(task)
            if not task.cancelled() and failure_of(task) is None:
                await task.result().close()

    async def _connect(self, address: str, peer: str) -> C:
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await self._open(address, peer, next(self._numbers))
        except (OSError, TimeoutError, EOFError) as error:
            raise PeerLost(
                f"{peer} cannot be reached: {type(error).__name__} {error}", "its owner died or restarted"
            ) from error


def _has_ended(task: asyncio.Task[C]) -> bool:
    return task.done() and (task.cancelled() or failure_of(task) is not None or not task.result().alive)


class PeerSocket:
    """The handshake's socket, which stays open: its end is the peer's end."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: str,
        on_end: Callable[[], None],
    ) -> None:
        """on_end: called once, when either side has closed the socket."""
        self._writer = writer
        self._on_end = on_end
        self._watching = asyncio.create_task(self._watch(reader), name=f"watch {peer}")

    def lose(self) -> None:
        """Closes this side's end now."""
        self._writer.close()

    async def close(self) -> None:
        """Closes it and waits for the task that watches it."""
        self.lose()
        self._watching.cancel()
        await settle(self._watching)

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        await until_closed(reader)
        self._on_end()
