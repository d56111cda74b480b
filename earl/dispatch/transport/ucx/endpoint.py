"""A connection to one peer: a UCX worker of its own on an asyncio loop, driven by its epoll descriptor.

```
submit ─► drive: progress until nothing moves ─► finish what completed ─► arm ─► sleep on epoll
              ▲                                                            │
              └──────────── readable, or armed too late ◄──────────────────┘
```
Promises: idle costs nothing; a buffer is kept until UCX is done with it, even if the waiting task was
cancelled; error handling is on, so a peer's death fails this endpoint's requests and nothing else; `abort`
ends its requests at once, whether or not the peer still answers, and waits for nothing that a peer does.
With a worker for each peer all sockets of a worker are this peer's, and whatever UCX keeps of a connection
that ended badly is never progressed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import Any

import numpy as np

from earl.dispatch.transport.ucx import ucp
from earl.dispatch.transport.ucx.runs import Runs
from earl.dispatch.transport.ucx.sockets import reset_connections
from earl.dispatch.transport.ucx.ucp import Array, api
from earl.errors import PeerLost, TransportUnavailable

# Turns of `drive` before other callbacks of the loop get their turn.
_TURNS = 64
# Turns in which UCX notices that its sockets have ended: the event, the failed lanes, their requests.
_TURNS_TO_FAIL = 8


class Endpoint:
    """Made by UcxNode; `connect` once, then send and receive until `abort`."""

    def __init__(self, context: Any, peer: str) -> None:
        """context: UCXContext. Raises TransportUnavailable."""
        self._loop = asyncio.get_running_loop()
        self.peer = peer
        self.alive = True
        try:
            self._worker: Any = api.UCXWorker(
                context, enable_delayed_submission=False, enable_python_future=False
            )
            self._worker.init_blocking_progress_mode()
            self.address: bytes = api.UCXAddress.create_from_worker(self._worker).tobytes()
        except api.UCXError as error:
            raise TransportUnavailable(
                f"UCX cannot make a worker for {peer}: {error}", "raise the limit of open files (ulimit -n)"
            ) from error
        self._endpoint: Any = None
        # request → (future, buffers that UCX may still touch)
        self._pending: dict[Any, tuple[asyncio.Future[None], Any]] = {}
        # UCX ends what is sent with the endpoint; a receive that nothing has arrived for, only ucxx's own.
        self._receives: weakref.WeakSet[ucp.RunsRequest] = weakref.WeakSet()
        self._kicked = False
        self._epoll_fd: int = self._worker.epoll_file_descriptor

    def connect(self, ucx_address: bytes) -> None:
        """Connects to a worker; the address from an authenticated peer only: UCX aborts on garbage.

        Until then the worker is not progressed. It would accept the connection of a peer that connects first,
        and reply on it while it creates the endpoint. If the peer has ended by then, UCX 1.21 frees what
        carries the endpoint's messages, without an error, and crashes on the next message.
        Raises PeerLost.
        """
        try:
            address = api.UCXAddress.create_from_buffer(ucx_address)
            self._endpoint = api.UCXEndpoint.create_from_worker_address(self._worker, address, True)
        except api.UCXError as error:
            raise _lost(self.peer, error) from error
        self._loop.add_reader(self._epoll_fd, self._drive)
        self._kick()

    @property
    def transports(self) -> tuple[str, ...]:
        """UCX's names of what carries its messages, such as ("tcp",); none where UCX does not tell."""
        return ucp.transports(self._endpoint.handle) if self.alive and self._endpoint is not None else ()

    def send(self, data: np.ndarray | bytes | Runs, tag: int) -> asyncio.Future[None]:
        """Done when UCX no longer needs `data`. The future fails with PeerLost."""
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        return self._submit("tag_send", array, tag)

    def receive(self, into: np.ndarray | Runs, tag: int) -> asyncio.Future[None]:
        """Done when a message with this tag lies in `into`.

        into: a contiguous writable array at least as long as the message, or runs exactly as long.
        """
        return self._submit("tag_recv", into, tag)

    def abort(self) -> None:
        """Ends every request of this endpoint now; their futures fail with PeerLost."""
        if not self.alive:
            return
        self.alive = False
        for request in list(self._receives):
            request.cancel()
        reset_connections(self._epoll_fd)
        for _ in range(_TURNS_TO_FAIL):
            self._worker.progress()
        if self._endpoint is not None:
            with contextlib.suppress(api.UCXError):  # it was closed by its own error before
                self._endpoint.close_blocking(period=10**8, max_attempts=1)
        self._drive()

    def _submit(self, method: str, data: np.ndarray | Runs, tag: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        # UCX crashes on a message for an endpoint that has failed before its worker has sent one.
        if not self.alive or not self._endpoint.alive:
            future.set_exception(PeerLost(f"{self.peer} is not connected", "its owner died or restarted"))
            return future
        try:
            if isinstance(data, Runs):
                request, held = self._submit_runs(method, data, tag), data
            else:
                held = Array(data)
                request = getattr(self._endpoint, method)(held, api.UCXXTag(tag))
        except api.UCXError as error:
            future.set_exception(_lost(self.peer, error))
            return future
        if request.completed:
            self._finish(request, future)
        else:
            self._pending[request] = (future, (data, held))
            self._kick()
        return future

    def _submit_runs(self, method: str, runs: Runs, tag: int) -> ucp.RunsRequest:
        endpoint, worker = self._endpoint.handle, self._endpoint.worker_handle
        if method == "tag_send":
            return ucp.send(endpoint, worker, runs, tag)
        request = ucp.receive(worker, runs, tag)
        self._receives.add(request)
        return request

    def _kick(self) -> None:
        """Drives UCX soon: a submission may have disarmed the event descriptor."""
        if not self._kicked and self._worker is not None:
            self._kicked = True
            self._loop.call_soon(self._kicked_now)

    def _kicked_now(self) -> None:
        self._kicked = False
        self._drive()

    def _drive(self) -> None:
        if self._worker is None:
            return
        for _ in range(_TURNS):
            self._worker.progress()
            self._reap()
            if not self.alive and not self._pending:
                self._release()
                return
            if self._worker.arm():
                return
        self._kick()

    def _reap(self) -> None:
        completed = [request for request in self._pending if request.completed]
        for request in completed:
            future, _ = self._pending.pop(request)
            self._finish(request, future)

    def _finish(self, request: Any, future: asyncio.Future[None]) -> None:
        try:
            request.check_error()
        except api.UCXError as error:
            if not future.done():
                future.set_exception(_lost(self.peer, error))
            return
        if not future.done():
            future.set_result(None)

    def _release(self) -> None:
        """Gives the worker up, once UCX has ended all that it was asked for."""
        self._loop.remove_reader(self._epoll_fd)
        self._endpoint = self._worker = None


def _lost(peer: str, error: Exception) -> PeerLost:
    return PeerLost(
        f"{peer}: {type(error).__name__.removeprefix('UCXX')}: {error}", "its owner died, restarted or froze"
    )
