"""An owner in a process of its own, for tests that kill it.

Run as `python -m tests.support.dispatch_owner` with arguments CONFIG_JSON URL PREFIX DIRECTORY OWNER
INCARNATION SIZE_BYTES LEASE_S. It publishes "held/OWNER" with one uint8 tensor "x" of SIZE_BYTES
random bytes and prints one line; then it obeys lines on stdin: "burn" computes for ever, "close" or
the end of stdin closes the store.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from earl.bus.connection import open_redis
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.publish.tensor_store import TensorSpec, TensorStore
from earl.dispatch.registry.registry import Registry
from tests.support.content import random_bytes
from tests.support.serving import serving_pid


async def main() -> None:
    config, url, prefix, directory, owner, incarnation, size_bytes, lease_s = sys.argv[1:]
    redis = open_redis(url)
    registry = Registry(redis, prefix, float(lease_s))
    size = int(size_bytes)
    store = await TensorStore.open(
        registry,
        DataPlaneConfig.model_validate_json(config),
        Path(directory),
        owner,
        incarnation=int(incarnation),
        size_bytes=size + (1 << 20),
    )
    key = f"held/{owner}"
    array = store.reserve(key, {"x": TensorSpec("uint8", (size,))})["x"]
    array[:] = random_bytes(size, int(incarnation))
    await store.publish(key)
    print(json.dumps({"serving_pid": serving_pid(store)}), flush=True)
    while True:
        line = (await asyncio.to_thread(sys.stdin.readline)).strip()
        if line == "burn":
            while True:
                pass
        await store.close()
        await redis.aclose()
        return


if __name__ == "__main__":
    asyncio.run(main())
