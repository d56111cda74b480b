"""An owner in a process of its own, for tests that kill it: see tests.support.dispatch.OwnerProcess."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from pathlib import Path

from earl.bus.connection import open_redis
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.publish.tensor_store import TensorSpec, TensorStore
from earl.dispatch.registry.registry import Registry
from tests.support.content import random_bytes
from tests.support.preloaded import preload_here
from tests.support.serving import serving_pid


def run_owner(
    pipe: Connection,
    config: DataPlaneConfig,
    url: str,
    prefix: str,
    directory: Path,
    owner: str,
    incarnation: int,
    size_bytes: int,
    lease_s: float,
) -> None:
    """Publishes "held/OWNER" with one uint8 tensor "x" of random bytes and sends its serving process's id.

    Then it obeys what it is sent: "burn" computes for ever, "close" or the pipe's end closes the store.
    """

    async def hold() -> None:
        redis = open_redis(url)
        store = await TensorStore.open(
            Registry(redis, prefix, lease_s),
            config,
            directory,
            owner,
            incarnation=incarnation,
            size_bytes=size_bytes + (1 << 20),
        )
        key = f"held/{owner}"
        array = store.reserve(key, {"x": TensorSpec("uint8", (size_bytes,))})["x"]
        array[:] = random_bytes(size_bytes, incarnation)
        await store.publish(key)
        pipe.send(serving_pid(store))
        if await asyncio.to_thread(_order, pipe) == "burn":
            while True:
                pass
        await store.close()
        await redis.aclose()

    preload_here()
    asyncio.run(hold())


def _order(pipe: Connection) -> str:
    try:
        return pipe.recv()
    except EOFError:
        return "close"
