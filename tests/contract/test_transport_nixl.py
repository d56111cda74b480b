"""Checks what only `nixl` promises: its wire is what it says, and it gets along with ucxx in one process."""

from __future__ import annotations

import asyncio
import secrets
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.put_tensors import put_tensors
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.memory.arena_file import arena_directory
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher, Read
from earl.dispatch.transport.nixl.agent import wire_here
from earl.dispatch.transport.nixl.link import NixlLink
from earl.dispatch.transport.nixl.node import NixlNode
from earl.errors import PeerLost, TransportUnavailable
from tests.support.content import MIB, assert_same, random_bytes
from tests.support.dispatch import READ_S, Plane, open_plane, plane_fixtures
from tests.support.serving import serving_pid

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(find_spec("nixl_cu12") is None, reason="install earl[nixl]"),
]


opened, plane = plane_fixtures(["nixl"], 64 * MIB)


def loaded(library: str) -> bool:
    return library in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(wire_here() == "rdma", reason="this machine has RDMA")
async def test_rdma_that_is_not_there_is_refused_by_owner_and_reader(plane: Plane, tmp_path: Path):
    for transport in ("nixl", "auto"):
        config = DataPlaneConfig(transport=transport, require="rdma")
        with pytest.raises(TransportUnavailable, match="no RDMA port"):
            await Dispatcher.create(plane.registry, config)
        arenas = arena_directory(config, tmp_path)
        with pytest.raises(TransportUnavailable, match="no RDMA port"):
            await TensorStore.open(plane.registry, config, arenas, "o", incarnation=1, size_bytes=MIB)
        assert not list(arenas.glob("*.arena"))


@pytest.mark.skipif(wire_here() == "rdma", reason="this machine has RDMA")
async def test_a_wire_without_devices_cannot_be_made(plane: Plane):
    """RDMA is a fact, not a preference: UCX is given no other way that it could take instead."""
    with pytest.raises(TransportUnavailable, match="rdma"):
        NixlNode("no-such-wire", "rdma", loopback=False)


async def test_a_peer_on_a_lesser_wire_is_refused(plane: Plane):
    node = NixlNode(f"reader-{secrets.token_hex(4)}", "tcp", loopback=True)
    secret, address = await plane.registry.secret(), plane.store.arena.ref.nixl_address
    with pytest.raises(TransportUnavailable, match="over tcp, this machine has rdma"):
        await NixlLink.open(node, "rdma", address, "owner", 1, secret)
    link = await NixlLink.open(node, "tcp", address, "owner", 2, secret)
    await link.close()
    await node.close()


async def test_what_goes_wrong_is_told_to_who_asked_and_harms_nobody_else(plane: Plane):
    node = NixlNode(f"reader-{secrets.token_hex(4)}", "tcp", loopback=True)
    memory, span = np.zeros(MIB, np.uint8), np.array([64], np.uint64)
    described = await node.submit(lambda agent: agent.register(memory))
    async with asyncio.timeout(READ_S):
        with pytest.raises(PeerLost, match="nobody"):
            await node.read("nobody", memory, span, span).future
        with pytest.raises(ZeroDivisionError):
            await node.submit(lambda agent: 1 // 0)
        await node.submit(lambda agent: agent.deregister(described))
        with pytest.raises(TransportUnavailable, match="deregister"):
            await node.submit(lambda agent: agent.deregister(described))
        assert await node.submit(lambda agent: agent.metadata)
    await node.close()


async def test_readers_that_close_in_the_middle_of_reads_leave_the_server_alive(plane: Plane):
    """UCX over TCP aborts who sends to an agent that goes away: one waits for what is under way."""
    await put_tensors(plane.store, "closing", {"x": np.ones(48 * MIB, np.uint8)})
    server, into = serving_pid(plane.store), np.zeros(48 * MIB, np.uint8)
    for _ in range(10):
        into[0] = 0
        async with await Dispatcher.create(plane.registry, plane.config) as reader:
            reading = asyncio.create_task(reader.read([Read(("closing",), "x", None, into)], READ_S))
            while not into[0] and not reading.done():  # noqa: ASYNC110
                await asyncio.sleep(0)
        await asyncio.wait([reading])
        assert reading.exception() is None or isinstance(reading.exception(), PeerLost)
    assert psutil.pid_exists(server) and serving_pid(plane.store) == server


@pytest.mark.parametrize("name", ["UCX_TLS", "UCX_NET_DEVICES"])
async def test_a_wire_forced_from_outside_is_refused(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setenv(name, "all")
    with pytest.raises(TransportUnavailable, match=name):
        NixlNode("forced", "tcp", loopback=True)


async def test_nixl_and_ucxx_read_in_one_process(plane: Plane, tmp_path: Path):
    """Each has a libucx of its own; both are loaded, both read at once."""
    data = random_bytes(16 * MIB)
    async with open_plane("ucx", tmp_path, 64 * MIB) as other:
        for opened in (plane, other):
            await put_tensors(opened.store, "both", {"x": data})
        targets = [np.zeros_like(data) for _ in range(6)]
        async with asyncio.timeout(READ_S):
            await asyncio.gather(
                *((plane, other)[i % 2].read("both", "x", into) for i, into in enumerate(targets))
            )
        for into in targets:
            assert_same(into, data)
        assert loaded("nixl_cu12.libs/libucp") and loaded("libucx/lib/libucp")
