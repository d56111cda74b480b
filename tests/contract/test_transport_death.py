"""Owners and serving processes that are killed or frozen: typed, at once, and nobody else is harmed.

That PeerLost comes at once is asserted without a measure of time: while a read from the dead ends, the
reader's clock stands still, so that no deadline can be what ends it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import numpy as np
import psutil
import pytest
import pytest_asyncio

from benchmarks.put_tensors import put_tensors
from earl.dispatch.read.reader import Dispatcher
from earl.dispatch.transport.liveness import BEAT_S
from earl.errors import PeerLost, PeerUnreachable, ReadTimeout, RegionGone, TransportUnavailable
from tests.support.clock import no_deadline, stopped_clock
from tests.support.content import MIB, assert_random, assert_same, random_bytes
from tests.support.dispatch import (
    PREFIX,
    READ_S,
    OwnerProcess,
    Plane,
    ReaderProcess,
    plane_fixtures,
    served,
)
from tests.support.preloaded import started_by

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLL_S = 0.01
SIZE = 12 * MIB + 345
# Too much to be under way all at once.
LONG = 96 * MIB


opened, plane = plane_fixtures(size_bytes=64 * MIB)


@pytest_asyncio.fixture(loop_scope="module")
async def owner(plane: Plane, tmp_path: Path) -> AsyncIterator[OwnerProcess]:
    started = await OwnerProcess.start(plane.config, plane.url, PREFIX, tmp_path, "victim", SIZE)
    yield started
    await started.close()


async def survivor_is_well(plane: Plane) -> None:
    await put_tensors(plane.store, "survivor", {"x": random_bytes(3 * MIB, 9)})
    into = np.zeros(3 * MIB, np.uint8)
    await plane.read("survivor", "x", into)
    assert_random(into, 9)
    await plane.store.remove("survivor")


async def read_or_lost(plane: Plane, owner: OwnerProcess, into: np.ndarray) -> str:
    """Returns what became of a read: never a hang, never wrong bytes."""
    try:
        await plane.read(owner.key, "x", into)
    except (PeerLost, RegionGone) as error:
        into[:] = 0x77
        return type(error).__name__
    assert_random(into, owner.incarnation)
    return "read"


async def until_read(plane: Plane, owner: OwnerProcess) -> None:
    """Each read is refused at once until the new server listens."""
    async with asyncio.timeout(READ_S):
        into = np.zeros(owner.size_bytes, np.uint8)
        while await read_or_lost(plane, owner, into) != "read":  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)  # the new server needs the cores too


async def until(condition: Callable[[], bool], poll_s: float) -> None:
    async with asyncio.timeout(READ_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(poll_s)


def dialling(address: str) -> bool:
    """Returns whether this process has a connection to host:port."""
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
        await survivor_is_well(plane)
        if stage == "idle":
            assert await read_or_lost(plane, owner, into) == "read"
        if stage in ("before", "idle"):
            os.kill(pid, signal.SIGKILL)
            with no_deadline():
                ending = await read_or_lost(plane, owner, into)
        else:
            if stage == "handshake":
                os.kill(owner.serving_pid, signal.SIGSTOP)
            reading = asyncio.create_task(read_or_lost(plane, owner, into))
            if stage == "handshake":
                address = (await plane.registry.get([owner.key]))[0].tensors[0].shards[0].region.arena
                await until(lambda: dialling(served(address)), POLL_S)
            else:
                await until(lambda: bool(into[0]) or reading.done(), 0)
                if owner.serving_pid:
                    os.kill(owner.serving_pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            if victim == "owner" and owner.serving_pid:
                os.kill(owner.serving_pid, signal.SIGCONT)  # finds its owner gone
            with no_deadline():
                ending = await reading
        # Shared memory outlives its owner until somebody removes the file, a server for a moment: those
        # bytes are right. A server that is killed is replaced.
        certain = victim == "server" and stage in ("handshake", "transfer")
        assert ending == "PeerLost" if certain else ending in ("PeerLost", "read")
        assert plane.kind != "shm" or ending == "read"
        await survivor_is_well(plane)
        if ending != "read":
            assert_same(into, 0x77)  # a read that was lost writes no more
        if victim == "server":
            await until_read(plane, owner)
            return
        await owner.ended()
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
        assert [one.pid for one in started_by(owner.process.pid)] == [owner.serving_pid], "it was replaced"


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
            with no_deadline():
                endings += await asyncio.gather(*reads)
            for ending, into in zip(endings[-2:], targets, strict=True):
                if ending != "read":
                    assert_same(into, 0x77)  # a read that was lost writes no more
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


async def test_a_frozen_server_is_silent_and_asked_again(plane: Plane, owner: OwnerProcess):
    """Two seconds of the reader's own clock, which the test advances; then until it answers."""
    if plane.kind == "shm":
        pytest.skip("shared memory has no server that could freeze")
    into = np.zeros(SIZE, np.uint8)
    assert await read_or_lost(plane, owner, into) == "read"
    arena = (await plane.registry.get([owner.key]))[0].tensors[0].shards[0].region.arena
    wire = plane.reader._wire
    assert wire is not None and wire.unreachable(arena) is None
    into[:] = 0
    os.kill(owner.serving_pid, signal.SIGSTOP)
    with stopped_clock() as advance:
        reading = asyncio.create_task(plane.read(owner.key, "x", into, deadline_s=1000.0))
        while wire.unreachable(arena) is None:
            await asyncio.sleep(0)
            advance(BEAT_S / 10)
        assert "has not answered for 2 s" in str(wire.unreachable(arena))
        os.kill(owner.serving_pid, signal.SIGCONT)
        while not reading.done():
            await asyncio.sleep(0)
            advance(BEAT_S / 1000)
    assert (await reading).retries > 0
    assert_random(into, owner.incarnation)


async def test_a_server_that_stays_frozen_is_silent_at_the_deadline(plane: Plane, owner: OwnerProcess):
    if plane.kind == "shm":
        pytest.skip("shared memory has no server that could freeze")
    into = np.zeros(SIZE, np.uint8)
    assert await read_or_lost(plane, owner, into) == "read"
    os.kill(owner.serving_pid, signal.SIGSTOP)
    with stopped_clock() as advance:
        reading = asyncio.create_task(plane.read(owner.key, "x", into, deadline_s=10.0))
        while not reading.done():
            await asyncio.sleep(0)
            advance(BEAT_S / 10)
    with pytest.raises(PeerUnreachable, match="frozen, or the network between is cut off"):
        await reading
    into[:] = 0x33
    os.kill(owner.serving_pid, signal.SIGCONT)
    again = np.zeros(SIZE, np.uint8)
    await plane.read(owner.key, "x", again)
    assert_random(again, owner.incarnation)
    assert_same(into, 0x33)


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
    assert_random(again, owner.incarnation)
    assert_same(into, 0x33)


async def test_a_dead_server_is_replaced_at_its_address(plane: Plane, owner: OwnerProcess):
    if plane.kind == "shm":
        pytest.skip("shared memory has no server")
    os.kill(owner.serving_pid, signal.SIGKILL)
    await until_read(plane, owner)


async def test_a_reader_without_the_secret_is_refused(plane: Plane):
    if plane.kind == "shm":
        pytest.skip("shared memory is guarded by the file's mode")
    await put_tensors(plane.store, "secret", {"x": random_bytes(1000)})
    stranger = Dispatcher(plane.registry, plane.config, b"another run's secret")
    with pytest.raises((PeerLost, TransportUnavailable)):
        await Plane(plane.kind, plane.config, plane.registry, plane.url, plane.store, stranger).read(
            "secret", "x", np.zeros(1000, np.uint8)
        )
    await stranger.close()
    await plane.store.remove("secret")
    await survivor_is_well(plane)


@pytest.mark.parametrize("junk", [b"", b"\xff" * 64, b"\x04\x00\x00\x00\x80", Random(0).randbytes(4096)])
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
