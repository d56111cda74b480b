"""One UCX worker on one asyncio loop, driven by its epoll descriptor: idle costs nothing.

```
submit ─► drive: progress until nothing moves ─► finish what completed ─► arm ─► sleep on epoll
              ▲                                                            │
              └──────────── readable, or armed too late ◄──────────────────┘
```
Promises: a buffer is kept until UCX is done with it, even if the waiting task was cancelled; error
handling is on for every endpoint, so a peer's death fails its requests and nothing else; `abort`
ends an endpoint's requests at once, whether or not the peer still answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from typing import Any

import numpy as np

from earl.dispatch.transport.ucx import ucp
from earl.dispatch.transport.ucx.runs import Runs
from earl.dispatch.transport.ucx.ucp import Array, api
from earl.errors import PeerLost, TransportUnavailable

log = logging.getLogger(__name__)

# 512k segments bring UCX over TCP to a plain socket's speed; both directions are needed. The registration
# cache, and so the hooks on mmap that it needs, is a must: UCX 1.21 without it crashes the survivor when a
# peer dies in the middle of a rendezvous (openucx/ucx#11467). Sockets keep the kernel's own buffers: with
# 4 MiB what is in flight leaves the processor's cache, and a reader took 1.6 times as long over it.
_CONFIG = {
    "TLS": "tcp",
    "RCACHE_ENABLE": "y",
    "TCP_TX_SEG_SIZE": "512k",
    "TCP_RX_SEG_SIZE": "512k",
    # Runs sent with one call; UCP goes no further.
    "TCP_MAX_IOV": "16",
    "KEEPALIVE_INTERVAL": "1s",
}
# Turns of `drive` before other callbacks of the loop get their turn.
_TURNS = 64


class Endpoint:
    """A connection to one peer's worker."""

    def __init__(self, node: UcxNode, endpoint: Any, peer: str) -> None:
        self._node = node
        self._endpoint = endpoint
        self.peer = peer
        self.alive = True
        # UCX ends what is sent with the endpoint; a receive that nothing has arrived for, only ucxx's own.
        self._receives: weakref.WeakSet[ucp.RunsRequest] = weakref.WeakSet()

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
        if self.alive:
            self.alive = False
            for request in list(self._receives):
                request.cancel()
            with contextlib.suppress(api.UCXError):  # it was closed by its own error before
                self._endpoint.close_blocking(period=10**8, max_attempts=1)
            self._node.kick()

    def _submit(self, method: str, data: np.ndarray | Runs, tag: int) -> asyncio.Future[None]:
        if not self.alive:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(PeerLost(f"{self.peer} is not connected", "its owner died or restarted"))
            return future
        try:
            if isinstance(data, Runs):
                request, held = self._submit_runs(method, data, tag), data
            else:
                held = Array(data)
                request = getattr(self._endpoint, method)(held, api.UCXXTag(tag))
        except api.UCXError as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(_lost(self.peer, error))
            return future
        return self._node.track(request, self.peer, (data, held))

    def _submit_runs(self, method: str, runs: Runs, tag: int) -> ucp.RunsRequest:
        endpoint, worker = self._endpoint.handle, self._endpoint.worker_handle
        if method == "tag_send":
            return ucp.send(endpoint, worker, runs, tag)
        request = ucp.receive(worker, runs, tag)
        self._receives.add(request)
        return request


class UcxNode:
    """devices: UCX network devices, "lo" to be reachable from this machine only, or "all"."""

    def __init__(self, devices: str) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            self._context = api.UCXContext(
                {**_CONFIG, "NET_DEVICES": devices}, feature_flags=(api.Feature.TAG, api.Feature.WAKEUP)
            )
            self._worker = api.UCXWorker(
                self._context, enable_delayed_submission=False, enable_python_future=False
            )
            self._worker.init_blocking_progress_mode()
        except api.UCXError as error:
            raise TransportUnavailable(
                f"UCX cannot use TCP on network devices {devices!r}: {error}",
                "check data_plane.bind, and leave UCX_MEM_MMAP_HOOK_MODE unset",
            ) from error
        # request → (future, peer, buffers that UCX may still touch)
        self._pending: dict[Any, tuple[asyncio.Future[None], str, Any]] = {}
        self._kicked = False
        self._closed = False
        self.address: bytes = api.UCXAddress.create_from_worker(self._worker).tobytes()
        self._epoll_fd: int = self._worker.epoll_file_descriptor
        self._loop.add_reader(self._epoll_fd, self._drive)
        if ucp.refusal():
            log.warning("what lies in pieces is gathered before it is sent: %s", ucp.refusal())
        self.kick()

    def connect(self, ucx_address: bytes, peer: str) -> Endpoint:
        """An endpoint to a worker; the address from an authenticated peer only: UCX aborts on garbage."""
        try:
            address = api.UCXAddress.create_from_buffer(ucx_address)
            endpoint = api.UCXEndpoint.create_from_worker_address(self._worker, address, True)
        except api.UCXError as error:
            raise _lost(peer, error) from error
        self.kick()
        return Endpoint(self, endpoint, peer)

    def track(self, request: Any, peer: str, buffers: Any) -> asyncio.Future[None]:
        """The future of a request; its buffers are held until UCX completes it."""
        future: asyncio.Future[None] = self._loop.create_future()
        if request.completed:
            _finish(request, future, peer)
        else:
            self._pending[request] = (future, peer, buffers)
            if self._closed:
                future.set_exception(PeerLost(f"{peer}: the reader is closed", "make another"))
            self.kick()
        return future

    def kick(self) -> None:
        """Makes the node drive UCX soon: a submission may have disarmed the event descriptor."""
        if not self._kicked and not self._closed:
            self._kicked = True
            self._loop.call_soon(self._kick)

    def close(self) -> None:
        """Stops driving. Endpoints must have been aborted; what is still pending fails with PeerLost."""
        if self._closed:
            return
        self._drive()
        self._closed = True
        self._loop.remove_reader(self._epoll_fd)
        for future, peer, _ in self._pending.values():
            if not future.done():
                future.set_exception(PeerLost(f"{peer}: the reader is closing", "open another one"))
        # Not cleared: buffers live as long as the worker that may write them.

    def _kick(self) -> None:
        self._kicked = False
        self._drive()

    def _drive(self) -> None:
        if self._closed:
            return
        for _ in range(_TURNS):
            self._worker.progress()
            self._reap()
            if self._worker.arm():
                return
        self.kick()

    def _reap(self) -> None:
        completed = [request for request in self._pending if request.completed]
        for request in completed:
            future, peer, _ = self._pending.pop(request)
            _finish(request, future, peer)


def _finish(request: Any, future: asyncio.Future[None], peer: str) -> None:
    try:
        request.check_error()
    except api.UCXError as error:
        if not future.done():
            future.set_exception(_lost(peer, error))
        return
    if not future.done():
        future.set_result(None)


def _lost(peer: str, error: Exception) -> PeerLost:
    return PeerLost(
        f"{peer}: {type(error).__name__.removeprefix('UCXX')}: {error}", "its owner died, restarted or froze"
    )
