"""A reader in its own process, for tests that kill it.

Run as `python -m tests.support.dispatch_reader` with arguments CONFIG_JSON URL PREFIX KEY SIZE_BYTES. It
prints a line, reads uint8 tensor "x" of SIZE_BYTES under KEY, prints another, and reads on for ever.
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np

from earl.bus.connection import open_redis
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.read.reader import Dispatcher, Read
from earl.dispatch.registry.registry import Registry

# Its test ends it long before.
READ_S = 60.0


async def main() -> None:
    config, url, prefix, key, size_bytes = sys.argv[1:]
    registry = Registry(open_redis(url), prefix, 60.0)
    into = np.zeros(int(size_bytes), np.uint8)
    async with await Dispatcher.create(registry, DataPlaneConfig.model_validate_json(config)) as reader:
        print("ready", flush=True)
        while True:
            await reader.read([Read((key,), "x", None, into)], READ_S)
            print("read", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
