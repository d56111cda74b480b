"""UCX's settings, what carries an endpoint's messages, and endpoints that end in the middle of one."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import select
import socket

import numpy as np
import pytest

from earl.dispatch.transport.ucx import sockets, ucp
from earl.dispatch.transport.ucx.endpoint import Endpoint
from earl.dispatch.transport.ucx.node import UcxNode, settings
from earl.dispatch.transport.ucx.sockets import reset_connections
from earl.errors import PeerLost, TransportUnavailable
from tests.unit.dispatch.transport.ucx.test_runs import over, without_comments

LONG_BYTES = 64 << 20


def test_settings_of_the_environment_come_first():
    chosen = settings({"UCX_TLS": "rc,tcp", "UCX_NET_DEVICES": "mlx5_0:1"}, loopback=False)
    assert (chosen["TLS"], chosen["NET_DEVICES"]) == ("rc,tcp", "mlx5_0:1")
    plain = settings({}, loopback=False)
    assert (plain["TLS"], plain["NET_DEVICES"]) == ("tcp", "all")


def test_what_is_bound_to_loopback_stays_there():
    chosen = settings({"UCX_NET_DEVICES": "eth0", "UCX_RCACHE_ENABLE": "n"}, loopback=True)
    assert (chosen["NET_DEVICES"], chosen["RCACHE_ENABLE"]) == ("lo", "y")


def test_ucx_gets_the_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("UCX_TLS", "tcp,sm,self")
    assert UcxNode(loopback=True)._context.config["TLS"] == "tcp,sm,self"
    monkeypatch.setenv("UCX_TLS", "carrier_pigeon")
    with pytest.raises(TransportUnavailable, match="UCX_TLS=carrier_pigeon"):
        UcxNode(loopback=True)


@pytest.mark.parametrize("tls", ["tcp", "tcp,sm,self"])
def test_an_endpoint_names_what_carries_its_messages(monkeypatch: pytest.MonkeyPatch, tls: str):
    """Error handling is always on, so messages within this machine take TCP as well."""
    monkeypatch.setenv("UCX_TLS", tls)

    async def body(there: Endpoint, back: Endpoint) -> None:
        await asyncio.gather(there.send(b"hello", 2), back.receive(np.zeros(5, np.uint8), 2))
        assert there.transports == ("tcp",)
        assert UcxNode(loopback=True).path(there.transports) == "ucx-tcp"

    over(body)


def test_the_attributes_of_an_endpoint_lie_as_the_header_says():
    header = without_comments("ucp/api/ucp.h")
    struct = re.search(r"typedef struct ucp_ep_attr \{(.*?)\} ucp_ep_attr_t;", header, re.DOTALL)
    assert struct is not None
    names = [line.split()[-1] for line in struct[1].replace("*", " ").split(";") if line.strip()]
    assert [name.partition("[")[0] for name in names] == [
        "field_mask", "name", "local_sockaddr", "remote_sockaddr", "transports", "user_data",
    ]  # fmt: skip
    definitions = without_comments("ucp/api/ucp_def.h")
    assert re.search(r"#define UCP_ENTITY_NAME_MAX\s+32", definitions)
    inner = re.search(
        r"(\w+)\s+\*?(\w+);\s+(\w+)\s+(\w+);\s+(\w+)\s+(\w+);\s*\} ucp_transports_t;", definitions
    )
    assert inner is not None and inner.groups() == (
        "ucp_transport_entry_t", "entries", "unsigned", "num_entries", "size_t", "entry_size",
    )  # fmt: skip
    assert ctypes.sizeof(ucp.EndpointAttributes) == 8 + 32 + 2 * 128 + 24 + 8


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
