"""A plain TCP socket from every producer to every consumer that reads it: the baseline for the wire.

The producer pushes the half rows straight out of its memory (sendmsg of many rows, nothing gathered), the
consumer receives them straight into its target (recv_into), one thread for each of its two sockets.
"""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.dispatch.arm import Arm
from benchmarks.dispatch.member import WAIT_S, Done, Member, Round
from benchmarks.dispatch.pattern import half, readers, sources

# Rows of one sendmsg: 4 MiB, far below the kernel's limit of 1,024 pieces.
SENT_ROWS = 128
BUFFER_BYTES = 4 << 20


class Sockets(Arm):
    """Streams without requests: both sides know which rows go where, which only favours this arm."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, "bench-socket")
        self._listener: socket.socket | None = None
        self._peers: dict[int, socket.socket] = {}

    async def open_producer(self, me: Member) -> tuple[str, int]:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        return self._listener.getsockname()

    async def open_consumer(self, me: Member) -> None:
        for producer in sources(me.rank):
            connection = socket.create_connection(tuple(me.known[str(producer)]), WAIT_S)
            connection.sendall(bytes([me.rank]))
            self._peers[producer] = self._tuned(connection)

    async def prepare_producer(self, me: Member, round_: Round) -> None:
        await super().prepare_producer(me, round_)
        assert self._listener is not None
        while len(self._peers) < len(readers(me.rank)):
            connection = self._listener.accept()[0]
            self._peers[connection.recv(1)[0]] = self._tuned(connection)

    async def produce(self, me: Member, round_: Round) -> Done:
        loop = asyncio.get_running_loop()
        slices = [(peer, me.array[:, half(consumer)]) for consumer, peer in self._peers.items()]
        await asyncio.gather(*(loop.run_in_executor(self._threads, send, *part) for part in slices))
        return Done()

    async def consume(self, me: Member, round_: Round) -> Done:
        began_ns = time.monotonic_ns()
        loop, pattern = asyncio.get_running_loop(), round_.pattern
        parts = [(peer, me.array[pattern.part(me.rank, producer)]) for producer, peer in self._peers.items()]
        received = await asyncio.gather(
            *(loop.run_in_executor(self._threads, receive, *part) for part in parts)
        )
        return Done(sum(received), time.monotonic_ns() - began_ns)

    async def close(self) -> None:
        for connection in [*self._peers.values(), *([self._listener] if self._listener else [])]:
            connection.close()
        self._threads.shutdown()

    @staticmethod
    def _tuned(connection: socket.socket) -> socket.socket:
        connection.settimeout(WAIT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        return connection


def send(peer: socket.socket, rows: np.ndarray) -> None:
    """Sends strided rows, each contiguous, in order."""
    for first in range(0, len(rows), SENT_ROWS):
        pieces = [row.data.cast("B") for row in rows[first : first + SENT_ROWS]]
        sent = peer.sendmsg(pieces)
        for piece in pieces:
            if sent < len(piece):
                peer.sendall(piece[sent:])
            sent = max(0, sent - len(piece))


def receive(peer: socket.socket, target: np.ndarray) -> int:
    """Fills a contiguous target and returns its bytes. Raises ConnectionError when the peer closes early."""
    view = target.data.cast("B")
    received = 0
    while received < len(view):
        count = peer.recv_into(view[received:])
        if not count:
            raise ConnectionError(f"a producer's socket ended {len(view) - received} bytes early")
        received += count
    return received
