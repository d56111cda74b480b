"""Endpoints of UCX whose peers end: in the middle of a message, or before it."""

from __future__ import annotations

import asyncio
import os
import select
import socket

import numpy as np
import pytest

from earl.dispatch.transport.ucx import sockets
from earl.dispatch.transport.ucx.endpoint import Endpoint
from earl.dispatch.transport.ucx.node import UcxNode
from earl.dispatch.transport.ucx.sockets import reset_connections
from earl.errors import PeerLost
from tests.unit.dispatch.transport.ucx.test_runs import over

LONG_BYTES = 64 << 20


@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_an_endpoint_that_ends_in_the_middle_of_a_payload_ends_both(side: str):
    """Neither side's loop stands still, whatever the sockets between them hold."""
    source, target = np.zeros(LONG_BYTES, np.uint8), np.zeros(LONG_BYTES, np.uint8)
    source[0] = 1

    async def body(there: Endpoint, back: Endpoint) -> None:
        sending, receiving = there.send(source, 1), back.receive(target, 1)
        while not target[0]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not receiving.done()
        (there if side == "sender" else back).abort()
        for waiting in (sending, receiving):
            with pytest.raises(PeerLost):
                await waiting
        assert not there._pending and not back._pending

    over(body)


def test_a_peer_that_ends_before_its_reader_connects_is_lost():
    """The serving process connects first, so a reader may connect to one that has gone again."""

    async def main() -> None:
        node = UcxNode(loopback=True)
        reader, server = node.endpoint("server"), node.endpoint("reader")
        server.connect(reader.address)
        while not any(_is_connected(fd) for fd in sockets._watched(server._epoll_fd, set())):  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(1000):  # turns in which the reader might take the connection in
            await asyncio.sleep(0)
        server.abort()
        reader.connect(server.address)
        receiving, sending = reader.receive(np.zeros(5, np.uint8), 1), reader.send(b"hello", 1)
        async with asyncio.timeout(10):
            for waiting in (receiving, sending):
                with pytest.raises(PeerLost):
                    await waiting
        reader.abort()

    asyncio.run(main())


def _is_connected(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as shared:
        try:
            return bool(shared.getpeername())
        except OSError:
            return False


def test_connections_below_an_epoll_descriptor_end():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        select.epoll() as inner,
        select.epoll() as outer,
        socket.create_connection(server.getsockname()) as client,
    ):
        peer, _ = server.accept()
        with peer:
            inner.register(server)
            inner.register(client)
            outer.register(inner.fileno())
            assert reset_connections(outer.fileno()) == 1
            assert client.recv(1) == peer.recv(1) == b""
            with socket.create_connection(server.getsockname()):
                server.accept()[0].close()  # what listens is left alone
