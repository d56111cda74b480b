"""A reader in a process of its own, for tests that kill it: see tests.support.dispatch.ReaderProcess."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

import numpy as np

from earl.bus.connection import open_redis
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.read.reader import Dispatcher, Read
from earl.dispatch.registry.registry import Registry

# Its test ends it long before.
READ_S = 60.0


def run_reader(
    pipe: Connection, config: DataPlaneConfig, url: str, prefix: str, key: str, size_bytes: int
) -> None:
    """Sends "ready", reads uint8 tensor "x" under `key`, sends "read", and reads on for ever."""

    async def read() -> None:
        into = np.zeros(size_bytes, np.uint8)
        async with await Dispatcher.create(Registry(open_redis(url), prefix, 60.0), config) as reader:
            pipe.send("ready")
            await reader.read([Read((key,), "x", None, into)], READ_S)
            pipe.send("read")
            while True:
                await reader.read([Read((key,), "x", None, into)], READ_S)

    asyncio.run(read())
