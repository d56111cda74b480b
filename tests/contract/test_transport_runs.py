"""Reads over UCX of what lies in many places, at its owner or its reader: right, and typed when they fail."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.regions import RegionRef
from earl.dispatch.memory.arena import Arena, Region
from earl.dispatch.memory.arena_file import arena_directory
from earl.dispatch.serve.server_process import ServingProcess
from earl.dispatch.transport.ucx import ucp
from earl.dispatch.transport.ucx.transport import UcxTcp
from earl.errors import ChecksumMismatch, PeerLost, RegionGone
from tests.support.clock import no_deadline
from tests.support.content import MIB, random_bytes
from tests.support.dispatch import READ_S
from tests.support.runs_reader import strided
from tests.support.serving import process_id

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = b"s" * 32
SIZE = 48 * MIB
KIB = 1 << 10
# offset, rows, run, stride
SHAPES = {
    "half rows": [(0, 600, 32 * KIB, 64 * KIB)],
    "a thousand rows": [(16, 1000, 16 * KIB, 40 * KIB)],
    "tiny rows": [(3, 5000, 7, 11)],
    "ragged": [
        (5, 3, 17, 100),
        (1000, 1, 1, 1),
        (4 * KIB, 40, 20_001, 30_011),
        (2 * MIB, 1, 3 * MIB + 1, 0),
        (6 * MIB, 9, 100, 5000),
        (7 * MIB, 2, 700_000, MIB),
    ],
    "rows that touch": [(0, 100, 20_000, 20_000), (2_000_000, 100, 20_000, 40_000)],
}


@dataclass
class Held:
    """A sealed region of random bytes, served by a process of its own, and a reader."""

    arena: Arena
    region: Region
    ref: RegionRef
    serving: ServingProcess
    reader: UcxTcp
    config: DataPlaneConfig

    def bytes_of(self, parts: list[tuple[int, int, int, int]]) -> np.ndarray:
        data = self.region.array(np.uint8, (SIZE,))
        rows = [data[o + i * s : o + i * s + run] for o, n, run, s in parts for i in range(n)]
        return np.concatenate(rows)

    async def read(
        self, parts: list[tuple[int, int, int, int]], *, verify: bool = False, reader: UcxTcp | None = None
    ) -> np.ndarray:
        into = np.zeros(sum(rows * run for _, rows, run, _ in parts), np.uint8)
        async with asyncio.timeout(READ_S):
            await (reader or self.reader).read(self.arena.ref, strided(self.ref, parts, into), verify=verify)
        return into


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def held(tmp_path_factory) -> AsyncIterator[Held]:
    config = DataPlaneConfig(transport="ucx")
    directory = arena_directory(config, tmp_path_factory.mktemp("runs"))
    with closing(Arena.create(directory, "owner", 1, SIZE + MIB)) as arena:
        serving = await ServingProcess.start(arena.ref, config, SECRET)
        arena.served_at(ucx_address=serving.address)
        region = arena.allocate(SIZE)
        region.array(np.uint8, (SIZE,))[:] = random_bytes(SIZE)
        reader = UcxTcp(config, SECRET)
        yield Held(arena, region, region.seal(checksum=True), serving, reader, config)
        await reader.close()
        await serving.stop()


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
async def test_runs_arrive_end_to_end(held: Held, shape: str, verify: bool):
    parts = SHAPES[shape]
    np.testing.assert_array_equal(await held.read(parts, verify=verify), held.bytes_of(parts))


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("run, gap", [(32 * KIB, 100), (20_001, 7), (40, 3)])
async def test_runs_arrive_where_they_belong(held: Held, run: int, gap: int, verify: bool):
    """Each row of the target has a gap behind it, which stays as it is."""
    rows, step = 700, run + gap
    into = np.full(rows * step, 0xEE, np.uint8)
    parts = [(64, rows, run, 2 * run)]
    pieces = strided(held.ref, parts, into, target_stride=step)
    async with asyncio.timeout(READ_S):
        await held.reader.read(held.arena.ref, pieces, verify=verify)
    found = into.reshape(rows, step)
    np.testing.assert_array_equal(found[:, :run].ravel(), held.bytes_of(parts))
    assert (found[:, run:] == 0xEE).all()


async def test_another_ucx_gathers(held: Held, monkeypatch: pytest.MonkeyPatch):
    """The reader's half: its pieces go through a buffer, whatever the owner sends them from."""
    monkeypatch.setattr(ucp, "refusal", lambda: "UCX 9.9.9 is not UCX 1.21")
    into = np.zeros(100 * 40_000, np.uint8)
    parts = [(0, 100, 30_000, 60_000)]
    await held.reader.read(held.arena.ref, strided(held.ref, parts, into, target_stride=40_000), verify=True)
    np.testing.assert_array_equal(into.reshape(100, 40_000)[:, :30_000].ravel(), held.bytes_of(parts))


async def test_a_flipped_byte_in_a_run_is_found(held: Held):
    parts = SHAPES["half rows"]
    data = held.region.array(np.uint8, (SIZE,))
    data[2 * 64 * KIB + 5] ^= 1
    try:
        with pytest.raises(ChecksumMismatch, match="block 0"):
            await held.read(parts, verify=True)
    finally:
        data[2 * 64 * KIB + 5] ^= 1
    await held.read(parts, verify=True)


async def test_a_region_that_is_gone_leaves_its_target_alone(held: Held):
    gone = dataclasses.replace(held.ref, generation=held.ref.generation + 2)
    into = np.zeros(100 * 40_000, np.uint8)
    pieces = strided(gone, [(0, 100, 30_000, 60_000)], into, target_stride=40_000)
    with pytest.raises(RegionGone):
        await held.reader.read(held.arena.ref, pieces, verify=False)
    assert not into.any()


@pytest.mark.parametrize("step", [32 * KIB, 33 * KIB])
async def test_a_cancelled_read_writes_no_more(held: Held, step: int):
    parts = SHAPES["half rows"]
    into = np.zeros(600 * step, np.uint8)
    pieces = strided(held.ref, parts, into, target_stride=step)
    reading = asyncio.create_task(held.reader.read(held.arena.ref, pieces, verify=False))
    async with asyncio.timeout(READ_S):
        while not into[0] and not reading.done():  # noqa: ASYNC110
            await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    into[:] = 0x55
    np.testing.assert_array_equal(await held.read(parts), held.bytes_of(parts))
    assert (into == 0x55).all()


@pytest.mark.parametrize("step", [32 * KIB, 33 * KIB])
async def test_a_server_killed_in_the_middle_is_peer_lost(held: Held, step: int):
    """The server is frozen first, so that the read is certainly under way; the reader survives and reads
    again.

    No deadline can be what ends the read: the reader's clock stands still.
    """
    async with asyncio.timeout(READ_S):
        while not await served(held):
            pass
    # More requests than are under way at once: the last ones are not even sent when it freezes.
    parts = [(0, 1400, 32 * KIB, 34 * KIB)] * 2
    into = np.zeros(2800 * step, np.uint8)
    pieces = strided(held.ref, parts, into, target_stride=step)
    async with asyncio.timeout(READ_S):
        while True:
            into[0] = 0
            reading = asyncio.create_task(held.reader.read(held.arena.ref, pieces, verify=True))
            while not into[0] and not reading.done():  # noqa: ASYNC110
                await asyncio.sleep(0)
            os.kill(process_id(held.serving), signal.SIGSTOP)
            if not reading.done():
                break
            os.kill(process_id(held.serving), signal.SIGCONT)
    os.kill(process_id(held.serving), signal.SIGKILL)
    with pytest.raises(PeerLost), no_deadline():
        await reading
    into[:] = 0x77
    async with asyncio.timeout(READ_S):
        while not await served(held):
            pass
    assert (into == 0x77).all(), "a lost read wrote into its target later"


async def served(held: Held) -> bool:
    """Returns whether it is answered; a killed server's successor is not at once there."""
    try:
        found = await held.read(SHAPES["half rows"])
    except PeerLost:
        return False
    np.testing.assert_array_equal(found, held.bytes_of(SHAPES["half rows"]))
    return True


async def test_a_reader_killed_in_the_middle_harms_nobody(held: Held):
    """The reader reads over and over, so that its server is sending runs when it dies."""
    async with asyncio.timeout(READ_S):
        while not await served(held):
            pass
    pid = process_id(held.serving)
    region = dataclasses.asdict(held.ref)
    said = {
        "config": held.config.model_dump(mode="json"),
        "secret": SECRET.hex(),
        "arena": region.pop("arena"),
        "region": region,
        "rows": 1400,
        "run": 32 * KIB,
        "stride": 34 * KIB,
    }
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.runs_reader", cwd=Path(__file__).parents[2],
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(said).encode() + b"\n")
        async with asyncio.timeout(READ_S):
            assert await process.stdout.readline(), "the reader ended"
        process.kill()
        await process.wait()
        assert await served(held)
    assert process_id(held.serving) == pid and psutil.pid_exists(pid), "the server was replaced"
