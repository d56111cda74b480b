"""The reader's NIXL agent on a thread of its own: the calling loop never waits for a wire.

```
submit, read ─► orders ─► [thread: run ─► post ─► poll every transfer ─► sleep ever longer] ─► futures
```
Promises: with nothing in flight the thread sleeps on its orders; an order's or a transfer's error goes to
its caller, and the thread continues; the memory of a transfer is held until NIXL is done with it, even
if nobody waits any more: NIXL cannot take a transfer back (a released one still writes).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from earl.dispatch.transport.base import failure_of
from earl.dispatch.transport.nixl.agent import NixlAgent, Wire
from earl.errors import PeerLost

T = TypeVar("T")

# The pause between two polls is this part of the time since a transfer ended: a frozen peer costs little.
_PART = 1 / 64
_SHORTEST_S, _LONGEST_S = 20e-6, 0.01
_DRAIN_PAUSE_S = 1e-4
# How often the thread handles what arrived while nothing is in flight.
_POLL_S = 1.0
# How long an agent that closes waits for transfers in flight: UCX over TCP aborts the process that is sending
# when its reader's end goes away between two pieces of one answer. A frozen peer is left after that.
_DRAIN_S = 2.0


@dataclass(eq=False, slots=True)
class NixlTransfer:
    """A read in flight. future: done when its end is known, or PeerLost when nobody waits any longer.

    memory: what NIXL writes; `ended` only once it does no more, then `when_ended` runs on the loop.
    """

    peer: str
    memory: np.ndarray
    future: asyncio.Future[None]
    ended: bool = False
    handle: int = 0
    when_ended: list[Callable[[], None]] = field(default_factory=list)


class NixlNode:
    """Made and used on one loop; `close` ends the thread and the agent."""

    def __init__(self, name: str, wire: Wire, *, loopback: bool) -> None:
        """Starts the agent. Raises TransportUnavailable."""
        self._loop = asyncio.get_running_loop()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._active: list[NixlTransfer] = []
        self._leaving: set[str] = set()
        # Memory of transfers whose end cannot be known: kept as long as the agent.
        self._given_up: list[NixlTransfer] = []
        self._agent = NixlAgent(name, wire, loopback=loopback, progress=False)
        self._thread = threading.Thread(target=self._run, name="earl-nixl", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[NixlAgent], T]) -> asyncio.Future[T]:
        """Does something with the agent on its thread; the future has what it returns or raises."""
        future: asyncio.Future[T] = self._loop.create_future()

        def order() -> None:
            try:
                result = work(self._agent)
            except Exception as error:  # noqa: BLE001  (passed to the caller)
                self._tell(_resolve, future, None, error)
            else:
                self._tell(_resolve, future, result, None)

        self._order(order)
        if self._closed:
            future.set_exception(_gone("of this reader"))
        return future

    def add_peer(self, metadata: bytes, name: str) -> asyncio.Future[str]:
        """Makes an agent readable, again if it was known: its old transfers are given up."""

        def add(agent: NixlAgent) -> str:
            if name in self._leaving:
                for transfer in [each for each in self._active if each.peer == name]:
                    self._active.remove(transfer)
                    self._given_up.append(transfer)
                    agent.release(transfer.handle)
                    self._tell(_resolve, transfer.future, None, _gone(name))
                self._forget(name)
            return agent.add_peer(metadata)

        return self.submit(add)

    def remove_peer(self, name: str) -> None:
        """Forgets a peer as soon as none of its transfers is in flight."""

        def remove() -> None:
            self._leaving.add(name)
            self._forget_idle()

        self._order(remove)

    def read(self, peer: str, memory: np.ndarray, remote: np.ndarray, length: np.ndarray) -> NixlTransfer:
        """Reads spans end to end into registered uint8 `memory`. remote, length: uint64[N], bytes.

        The transfer's future fails with PeerLost.
        """
        transfer = NixlTransfer(peer, memory, self._loop.create_future())
        transfer.future.add_done_callback(failure_of)
        local = np.uint64(memory.ctypes.data) + np.cumsum(length) - length

        def post() -> None:
            try:
                transfer.handle = self._agent.post(peer, local, remote, length)
            except Exception as error:  # noqa: BLE001  (passed to the transfer's future)
                self._tell(_end, transfer, error)
            else:
                self._active.append(transfer)

        self._order(post)
        if self._closed:
            _end(transfer, _gone(peer))
        return transfer

    async def close(self) -> None:
        """Ends every transfer, then the agent; afterwards NIXL writes no memory at all."""
        self._closed = True
        self._orders.put(None)
        await asyncio.to_thread(self._thread.join)

    def _order(self, order: Callable[[], None]) -> None:
        if not self._closed:
            self._orders.put(order)

    def _run(self) -> None:
        moved = time.monotonic()
        while True:
            pause = min(max(_SHORTEST_S, _PART * (time.monotonic() - moved)), _LONGEST_S)
            pause = pause if self._active else _POLL_S
            with contextlib.suppress(queue.Empty):
                while True:
                    order = self._orders.get(timeout=pause)
                    if order is None:
                        self._stop()
                        return
                    order()
                    pause, moved = 0.0, time.monotonic()
            if not self._active:
                self._agent.progress()
            elif self._reap():
                moved = time.monotonic()

    def _reap(self) -> bool:
        """Finishes the transfers that have ended; returns whether there were any."""
        before, still = self._active, []
        for transfer in before:
            error = None
            try:
                if not self._agent.done(transfer.handle, transfer.peer):
                    still.append(transfer)
                    continue
            except PeerLost as lost:
                error = lost
            self._agent.release(transfer.handle)
            self._tell(_end, transfer, error)
        self._active = still
        if len(still) < len(before):
            self._forget_idle()
        return len(still) < len(before)

    def _forget_idle(self) -> None:
        for name in self._leaving - {transfer.peer for transfer in self._active}:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._leaving.discard(name)
        self._agent.remove_peer(name)

    def _stop(self) -> None:
        until = time.monotonic() + _DRAIN_S
        while self._active and time.monotonic() < until:
            if not self._reap():
                time.sleep(_DRAIN_PAUSE_S)
        del self._agent
        for transfer in self._active:
            self._tell(_end, transfer, _gone(transfer.peer))
        self._active.clear()
        self._given_up.clear()

    def _tell(self, what: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
            self._loop.call_soon_threadsafe(what, *arguments)


def _resolve(future: asyncio.Future, result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _end(transfer: NixlTransfer, error: BaseException | None) -> None:
    transfer.ended = True
    _resolve(transfer.future, None, error)
    for call in transfer.when_ended:
        call()


def _gone(peer: str) -> PeerLost:
    return PeerLost(f"NIXL agent {peer} was disconnected", "its owner died, or the reader closed")
