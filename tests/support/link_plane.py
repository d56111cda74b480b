"""An owner and a reader of the data plane in processes of their own, for tests that cut the link between.

`python -m tests.support.link_plane owner ADDRESS BYTES` holds a region of random bytes, serves it at ADDRESS
and prints it as JSON with "pid", its serving process; then "pid N" whenever that is replaced.
`python -m tests.support.link_plane reader ADDRESS BYTES`, with the owner's JSON on stdin, reads the region
over and over and prints after each time "read N", N requests repeated, or "wrong"; and "silent" each time
it finds its peer silent.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.describe.regions import ArenaRef, RegionRef
from earl.dispatch.memory.arena import Arena
from earl.dispatch.serve.server_process import ServingProcess
from earl.dispatch.transport.ucx.transport import UcxTcp
from earl.errors import PeerLost
from tests.support.content import random_bytes
from tests.support.runs_reader import strided
from tests.support.serving import process_id

SECRET = b"s" * 32
ARENAS = Path("/dev/shm/arenas")
POLL_S = 0.02


def plane_config(address: str) -> DataPlaneConfig:
    return DataPlaneConfig(transport="ucx", bind=address, trusted_network=True)


async def own(address: str, size: int) -> None:
    os.environ["EARL_ADVERTISE"] = address
    with closing(Arena.create(ARENAS, "owner", 1, size + (1 << 20))) as arena:
        serving = await ServingProcess.start(arena.ref, plane_config(address), SECRET)
        arena.served_at(ucx_address=serving.address)
        region = arena.allocate(size)
        region.array(np.uint8, (size,))[:] = random_bytes(size)
        held = dataclasses.asdict(region.seal(checksum=True))
        pid = process_id(serving)
        print(json.dumps({"arena": held.pop("arena"), "region": held, "pid": pid}), flush=True)
        while True:
            await asyncio.sleep(POLL_S)
            if process_id(serving) != pid:
                pid = process_id(serving)
                print(f"pid {pid}", flush=True)


async def read(address: str, size: int) -> None:
    order = json.loads(sys.stdin.readline())
    arena = ArenaRef(**order["arena"])
    checksums = tuple(order["region"].pop("checksums"))
    region = RegionRef(arena=arena, checksums=checksums, **order["region"])
    reader = UcxTcp(plane_config(address), SECRET)
    expected, into = random_bytes(size), np.zeros(size, np.uint8)
    while True:
        into[:] = 0
        pieces = strided(region, [(0, 1, size, size)], into)
        reading = asyncio.create_task(reader.read(arena, pieces, verify=True))
        last = reader.unreachable(arena)
        while not reading.done():
            await asyncio.wait([reading], timeout=POLL_S)
            unreachable = reader.unreachable(arena)
            if unreachable is not None and unreachable is not last:
                last = unreachable
                print("silent", flush=True)
        try:
            again = reading.result()
        except PeerLost:  # a network that refuses connections looks like an owner that has ended
            print("lost", flush=True)
            continue
        print(f"read {again}" if (into == expected).all() else "wrong", flush=True)


if __name__ == "__main__":
    role, address, size = sys.argv[1:]
    asyncio.run({"owner": own, "reader": read}[role](address, int(size)))
