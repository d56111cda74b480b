"""The reader's end of one connection: handshake, endpoint, and the socket that tells if the peer lives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from earl.dispatch.transport import wire
from earl.dispatch.transport.connections import PeerSocket
from earl.dispatch.transport.handshake import greet
from earl.dispatch.transport.ucx.endpoint import Endpoint
from earl.dispatch.transport.ucx.node import UcxNode
from earl.dispatch.transport.ucx.runs import Runs
from earl.errors import PeerLost


class UcxConnection:
    """`alive` until either side has ended it; `retired` if this side gave it up with requests in flight."""

    def __init__(
        self,
        endpoint: Endpoint,
        number: int,
        server_number: int,
        key: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._endpoint = endpoint
        self._number = number
        self._server_number = server_number
        self._key = key
        self._socket = PeerSocket(reader, writer, endpoint.peer, self.lose)
        self._seq = 0
        # Known once it is connected.
        self.transports: tuple[str, ...] = ()
        self.window = asyncio.Semaphore(wire.WINDOW)
        self.retired = False

    @classmethod
    async def open(cls, node: UcxNode, address: str, peer: str, number: int, secret: bytes) -> UcxConnection:
        """Connects and proves that both sides hold the run's secret.

        Raises PeerLost, OSError or EOFError when nobody answers, TransportUnavailable for another run's.
        """
        endpoint = node.endpoint(peer)
        try:
            reader, writer, welcome, key = await greet(address, peer, secret, endpoint.address, number)
            try:
                endpoint.connect(welcome.offer)
            except BaseException:
                writer.close()
                raise
        except BaseException:
            endpoint.abort()
            raise
        return cls(endpoint, number, welcome.connection, key, reader, writer)

    @property
    def peer(self) -> str:
        return self._endpoint.peer

    @property
    def alive(self) -> bool:
        return self._endpoint.alive

    def next_seq(self) -> int:
        self._seq = (self._seq + 1) % (1 << wire.SEQ_BITS)
        return self._seq

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """An answer is expected within the block. Raises PeerUnreachable if the peer was silent meanwhile."""
        try:
            with self._socket.expecting():
                yield
        except PeerLost as error:
            raise self._socket.unreachable or error from None
        self.transports = self.transports or self._endpoint.transports

    def exchange(
        self, request: wire.Request, payload: np.ndarray | Runs, status: np.ndarray
    ) -> list[asyncio.Future[None]]:
        """Receives are posted before the request leaves, so that payloads land in place."""
        seq = request.seq
        frame = wire.encode_request(request, self._key)
        return [
            self._endpoint.receive(payload, wire.payload_tag(self._number, seq)),
            self._endpoint.receive(status, wire.status_tag(self._number, seq)),
            self._endpoint.send(frame, wire.request_tag(self._server_number)),
        ]

    def lose(self) -> None:
        """Ends it now; requests in flight fail with PeerLost."""
        self._endpoint.abort()
        self._socket.lose()

    async def close(self) -> None:
        """Ends it and waits for its socket's watcher."""
        self.lose()
        await self._socket.close()
