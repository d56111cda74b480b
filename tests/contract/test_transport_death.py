"""Owners and serving processes that are killed or frozen: typed, in time, and nobody else is harmed.

That PeerLost comes within 2 s is asserted by the deadline: a read given 2 s must end with it and
not with ReadTimeout.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
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
    open_plane,
    random_bytes,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOST_S = 2.0
SIZE = 12 * MIB + 345


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
    np.testing.assert_array_equal(into, random_bytes(SIZE, owner.incarnation))
    return "read"


@pytest.mark.parametrize("connected", [False, True])
async def test_killed_before_a_read(plane: Plane, owner: OwnerProcess, connected: bool):
    into = np.zeros(SIZE, np.uint8)
    if connected:
        assert await read_or_lost(plane, owner, into) == "read"
    await owner.kill()
    ending = await read_or_lost(plane, owner, into)
    # Shared memory outlives its owner until somebody removes the file: those bytes are right.
    assert ending == "read" if plane.kind == "shm" else ending == "PeerLost"
    await survivor_is_well(plane)


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
    into = np.zeros(SIZE, np.uint8)
    os.kill(owner.serving_pid, signal.SIGKILL)
    async with asyncio.timeout(READ_S):
        ending = "PeerLost"
        while ending != "read":  # each refused at once, until the new one listens
            ending = await read_or_lost(plane, owner, into)


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
    host, _, port = (plane.store.arena.ref.ucx_address or plane.store.arena.ref.nixl_address).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(junk)
    writer.write_eof()
    async with asyncio.timeout(READ_S):
        await reader.read()
    writer.close()
    await survivor_is_well(plane)
