"""Owners and serving processes that are killed or frozen: typed, in time, and nobody else is harmed.

That PeerLost comes within 2 s is asserted by the deadline: a read given 2 s must end with it and
not with ReadTimeout.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio

from earl.dispatch.dispatcher import Dispatcher
from earl.errors import PeerLost, ReadTimeout, RegionGone, TransportUnavailable
from tests.support.dispatch import (
    MIB,
    PREFIX,
    READ_S,
    TRANSPORTS,
    OwnerProcess,
    Plane,
    ReaderProcess,
    open_plane,
    random_bytes,
    served,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOST_S = 2.0
SIZE = 12 * MIB + 345
# Too much to be under way all at once.
LONG = 96 * MIB


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TRANSPORTS)
async def plane(request, tmp_path_factory) -> AsyncIterator[Plane]:
    async with open_plane(request.param, tmp_path_factory.mktemp(request.param), 64 * MIB) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def owner(plane: Plane, tmp_path: Path) -> AsyncIterator[OwnerProcess]:
    started = await OwnerProcess.start(plane.config, plane.url, PREFIX, tmp_path, "victim", SIZE)
    yield started
    await started.close()


async def survivor_is_well(plane: Plane) -> None:
    data = random_bytes(3 * MIB, 9)
    await plane.store.put("survivor", {"x": data})
    into = np.zeros_like(data)
    await plane.read("survivor", "x", into)
    np.testing.assert_array_equal(into, data)
    await plane.store.remove("survivor")


async def read_or_lost(plane: Plane, owner: OwnerProcess, into: np.ndarray) -> str:
    """What became of a read of 2 s: never a hang, never wrong bytes."""
    try:
        await plane.read(owner.key, "x", into, deadline_s=LOST_S)
    except (PeerLost, RegionGone) as error:
        into[:] = 0x77
        return type(error).__name__
    np.testing.assert_array_equal(into, random_bytes(len(into), owner.incarnation))
    return "read"


async def until_read(plane: Plane, owner: OwnerProcess) -> None:
    """Each read is refused at once until the new server listens."""
    async with asyncio.timeout(READ_S):
        into = np.zeros(owner.size_bytes, np.uint8)
        while await read_or_lost(plane, owner, into) != "read":
            pass


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(READ_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def dialling(address: str) -> bool:
    """Whether this process has a connection to host:port."""
    port = int(address.rpartition(":")[2])
    return any(c.raddr and c.raddr.port == port for c in psutil.Process().net_connections("tcp"))


@pytest.mark.parametrize("victim", ["owner", "server"])
@pytest.mark.parametrize("stage", ["before", "handshake", "idle", "transfer"])
async def test_killed_at_each_stage(plane: Plane, tmp_path: Path, stage: str, victim: str):
    """A frozen server holds a read at its stage until the victim is killed."""
    if plane.kind == "shm" and (victim == "server" or stage == "handshake"):
        pytest.skip("shared memory has no server and no handshake")
    size = LONG if stage == "transfer" else SIZE
    owner = await OwnerProcess.start(plane.config, plane.url, PREFIX, tmp_path, "victim", size)
    pid = owner.serving_pid if victim == "server" else owner.process.pid
    try:
        into = np.zeros(size, np.uint8)
        if stage == "idle":
            assert await read_or_lost(plane, owner, into) == "read"
        if stage in ("before", "idle"):
            os.kill(pid, signal.SIGKILL)
            ending = await read_or_lost(plane, owner, into)
        else:
            if stage == "handshake":
                os.kill(owner.serving_pid, signal.SIGSTOP)
            reading = asyncio.create_task(read_or_lost(plane, owner, into))
            if stage == "handshake":
                address = (await plane.registry.get([owner.key]))[0].tensors[0].shards[0].region.arena
                await until(lambda: dialling(served(address)))
            else:
                await until(lambda: bool(into[0]) or reading.done())
                if owner.serving_pid:
                    os.kill(owner.serving_pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            if victim == "owner" and owner.serving_pid:
                os.kill(owner.serving_pid, signal.SIGCONT)  # finds its owner gone
            ending = await reading
        # Shared memory outlives its owner until somebody removes the file, a server for a moment: those
        # bytes are right. A server that is killed is replaced.
        certain = victim == "server" and stage in ("handshake", "transfer")
        assert ending == "PeerLost" if certain else ending in ("PeerLost", "read")
        assert plane.kind != "shm" or ending == "read"
        await survivor_is_well(plane)
        assert ending == "read" or (into == 0x77).all(), "a lost read wrote into its target later"
        if victim == "server":
            await until_read(plane, owner)
            return
        await owner.process.wait()
        again = await OwnerProcess.start(
            plane.config, plane.url, PREFIX, tmp_path, "victim", SIZE, incarnation=12
        )
        try:
            assert await read_or_lost(plane, again, np.zeros(SIZE, np.uint8)) == "read"
        finally:
            await again.close()
    finally:
        await owner.close()


@pytest.mark.parametrize("reader", ["read", "handshake"])
async def test_a_killed_reader_harms_nobody(plane: Plane, owner: OwnerProcess, reader: str):
    into = np.zeros(SIZE, np.uint8)
    for _ in range(2):
        process = await ReaderProcess.start(plane.config, plane.url, PREFIX, owner.key, SIZE)
        if reader == "read":
            await process.reading()
        process.kill()
        assert await read_or_lost(plane, owner, into) == "read"
    if owner.serving_pid:
        assert psutil.Process(owner.serving_pid).ppid() == owner.process.pid, "the server was replaced"


async def test_killed_at_any_moment_of_reads(plane: Plane, tmp_path: Path):
    endings = []
    for turn in range(5):
        owner = await OwnerProcess.start(
            plane.config, plane.url, PREFIX, tmp_path / str(turn), "victim", SIZE
        )
        try:
            targets = [np.zeros(SIZE, np.uint8) for _ in range(2)]
            reads = [asyncio.create_task(read_or_lost(plane, owner, into)) for into in targets]
            for _ in range(turn * 12):
                await asyncio.sleep(0)
            os.kill(owner.serving_pid or owner.process.pid, signal.SIGKILL)
            await owner.kill()
            endings += await asyncio.gather(*reads)
            for ending, into in zip(endings[-2:], targets, strict=True):
                assert ending == "read" or (into == 0x77).all(), "a lost read wrote into its target later"
            await survivor_is_well(plane)
        finally:
            await owner.close()
    if plane.kind != "shm":
        assert "PeerLost" in endings
    else:
        assert set(endings) == {"read"}


async def test_a_computing_owner_does_not_delay_reads(plane: Plane, owner: OwnerProcess):
    owner.tell("burn")
    into = np.zeros(SIZE, np.uint8)
    for _ in range(3):
        assert await read_or_lost(plane, owner, into) == "read"
    await owner.kill()


async def test_a_frozen_server_is_a_timeout_and_comes_back(plane: Plane, owner: OwnerProcess):
    if plane.kind == "shm":
        pytest.skip("shared memory has no server that could freeze")
    into, again = np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
    assert await read_or_lost(plane, owner, into) == "read"
    os.kill(owner.serving_pid, signal.SIGSTOP)
    with pytest.raises(ReadTimeout):
        await plane.read(owner.key, "x", into, deadline_s=0.5)
    into[:] = 0x33
    await survivor_is_well(plane)
    os.kill(owner.serving_pid, signal.SIGCONT)
    await plane.read(owner.key, "x", again)
    np.testing.assert_array_equal(again, random_bytes(SIZE, owner.incarnation))
    assert (into == 0x33).all()


async def test_a_dead_server_is_replaced_at_its_address(plane: Plane, owner: OwnerProcess):
    if plane.kind == "shm":
        pytest.skip("shared memory has no server")
    os.kill(owner.serving_pid, signal.SIGKILL)
    await until_read(plane, owner)


async def test_a_reader_without_the_secret_is_refused(plane: Plane):
    if plane.kind == "shm":
        pytest.skip("shared memory is guarded by the file's mode")
    await plane.store.put("secret", {"x": random_bytes(1000)})
    stranger = Dispatcher(plane.registry, plane.config, b"another run's secret")
    with pytest.raises((PeerLost, TransportUnavailable)):
        await Plane(plane.kind, plane.config, plane.registry, plane.url, plane.store, stranger).read(
            "secret", "x", np.zeros(1000, np.uint8)
        )
    await stranger.close()
    await plane.store.remove("secret")
    await survivor_is_well(plane)


@pytest.mark.parametrize("junk", [b"", b"\xff" * 64, b"\x04\x00\x00\x00\x80", os.urandom(4096)])
async def test_junk_at_the_door_harms_nobody(plane: Plane, junk: bytes):
    if plane.kind == "shm":
        pytest.skip("shared memory has no door")
    host, _, port = served(plane.store.arena.ref).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(junk)
    writer.write_eof()
    async with asyncio.timeout(READ_S):
        await reader.read()
    writer.close()
    await survivor_is_well(plane)
