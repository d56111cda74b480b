"""A reader's connections to serving processes, whichever wire they use: by address, and when they end.

until_answered ─► connection ─► request ─┬─► answer
      ▲               (made on first use)├─► silent for 2 s of this side's time ─► PeerUnreachable ┐
      │                                  └─► ended: made again once, at once                    │
      └──────────────── at most a second later, until the caller is cancelled ◄─────────────────┘
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from earl.dispatch.transport.base import failure_of, settle
from earl.dispatch.transport.handshake import check_dialled
from earl.dispatch.transport.liveness import BEAT_S, UNANSWERED_S, Liveness
from earl.errors import PeerLost, PeerUnreachable

# Pauses before a silent peer is asked again: the first, doubled each time, and the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
# The most times that one request is sent: a deadline ends it long before.
TRIES = 100
_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ETIMEDOUT}
_BEAT = b"\0"
_BEATS = 64


class Closable(Protocol):
    """A connection that lives until either side ends it.

    retired: this side gave it up although its peer was well, for the sake of another request.
    """

    @property
    def alive(self) -> bool: ...

    @property
    def retired(self) -> bool: ...

    async def close(self) -> None: ...


T = TypeVar("T")
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
        # Address → when its peer was last found silent, and the error of that.
        self._unreachable: dict[str, tuple[float, PeerUnreachable]] = {}

    async def until_answered(
        self, owner: str, address: str, work: Callable[[C], Awaitable[T]]
    ) -> tuple[T, int]:
        """Does `work` with the connection to a peer: its outcome, and how many times it was done again.

        A silent peer is asked until the caller is cancelled, TRIES times at most. A connection that ends is
        made again once: where its process is dead, that is refused at once. Raises PeerLost, PeerUnreachable,
        TransportUnavailable, and what `work` raises.
        """
        pause_s, renewed = FIRST_PAUSE_S, False
        for tries in range(TRIES):
            connection = None
            try:
                connection = await self.get(owner, address)
                outcome = await work(connection)
                self._unreachable.pop(address, None)
                return outcome, tries
            except PeerUnreachable as error:
                self._unreachable[address] = asyncio.get_running_loop().time(), error
                if tries == TRIES - 1:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            except PeerLost:
                if connection is None or tries == TRIES - 1 or self._closed:
                    raise
                if not connection.retired and (renewed or connection.alive):
                    raise
                renewed = renewed or not connection.retired
        raise AssertionError("unreachable")

    def unreachable(self, address: str) -> PeerUnreachable | None:
        """The error of a peer that is silent now; None if it is not."""
        since_s, error = self._unreachable.get(address, (0.0, None))
        recent_s = 2 * (UNANSWERED_S + LONGEST_PAUSE_S)
        return error if asyncio.get_running_loop().time() < since_s + recent_s else None

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

    def open_to(self, address: str) -> C | None:
        """The connection to this address, if there is one now."""
        task = self._tasks.get(address)
        return None if task is None or not task.done() or _has_ended(task) else task.result()

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
            async with _unless_unreachable(peer):
                return await self._open(address, peer, next(self._numbers))
        except (OSError, EOFError) as error:
            if getattr(error, "errno", None) in _UNREACHABLE:
                raise _unreachable(peer) from error
            raise PeerLost(
                f"{peer} cannot be reached: {type(error).__name__} {error}", "its owner died or restarted"
            ) from error


def _has_ended(task: asyncio.Task[C]) -> bool:
    return task.done() and (task.cancelled() or failure_of(task) is not None or not task.result().alive)


def _unreachable(peer: str) -> PeerUnreachable:
    return PeerUnreachable(
        f"{peer} has not answered for {UNANSWERED_S:g} s",
        "its serving process is frozen, or the network between is cut off",
    )


@asynccontextmanager
async def _unless_unreachable(peer: str) -> AsyncIterator[None]:
    """Raises PeerUnreachable when the block takes UNANSWERED_S of this side's time."""
    loop = asyncio.get_running_loop()
    liveness, scope = Liveness(loop.time()), asyncio.timeout(None)

    def tick() -> None:
        nonlocal timer
        now_s = loop.time()
        if liveness.tick(now_s):
            scope.reschedule(now_s)
        else:
            timer = loop.call_later(BEAT_S, tick)

    timer = loop.call_later(BEAT_S, tick)
    try:
        async with scope:
            yield
    except TimeoutError:
        raise _unreachable(peer) from None  # this scope's, or that of the kernel, which gave up sooner
    finally:
        timer.cancel()


class PeerSocket:
    """The handshake's socket, which stays open: its end is the peer's end, its silence the peer's.

    unreachable: the error of a peer that was silent for too long while something was expected of it; None
    until then.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: str,
        on_end: Callable[[], None],
    ) -> None:
        """on_end: called once, when either side has closed the socket, or the peer is silent."""
        self._writer = writer
        self._peer = peer
        self._on_end = on_end
        self.unreachable: PeerUnreachable | None = None
        self._expected = 0
        self._liveness = Liveness(0.0)
        self._timer: asyncio.TimerHandle | None = None
        self._watching = asyncio.create_task(self._watch(reader), name=f"watch {peer}")

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Something is expected of the peer within the block: its silence is noticed."""
        self._expected += 1
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._liveness = Liveness(loop.time())
            self._timer = loop.call_later(BEAT_S, self._tick)
        try:
            yield
            self._liveness.answered()
        finally:
            self._expected -= 1

    def lose(self) -> None:
        """Closes this side's end now."""
        if self._timer is not None:
            self._timer.cancel()
        self._writer.close()

    async def close(self) -> None:
        """Closes it and waits for the task that watches it."""
        self.lose()
        self._watching.cancel()
        await settle(self._watching)

    def _tick(self) -> None:
        """Sends a heartbeat and counts silence for as long as something is expected."""
        self._timer = None
        if not self._expected or self._writer.is_closing():
            return
        loop = asyncio.get_running_loop()
        if self._liveness.tick(loop.time()):
            self.unreachable = _unreachable(self._peer)
            self._on_end()
            return
        self._writer.write(_BEAT)
        self._timer = loop.call_later(BEAT_S, self._tick)

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while await reader.read(_BEATS):
                self._liveness.answered()
        self._on_end()
