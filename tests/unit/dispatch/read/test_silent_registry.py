"""A registry that does not answer is named as what a read waited for."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from earl.bus.connection import open_redis
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.read.reader import Dispatcher, Read
from earl.dispatch.registry.registry import Registry
from earl.errors import BusUnavailable, DataPlaneError, RegistryUnavailable


async def test_a_registry_that_gives_no_answer_is_not_taken_for_an_owner() -> None:
    """The server accepts connections and says nothing, as one that is frozen."""
    server = await asyncio.start_server(lambda reader, writer: asyncio.sleep(0), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    redis = open_redis(f"redis://127.0.0.1:{port}", outage_s=60.0)
    async with Dispatcher(Registry(redis, "{earl:t}:", 60.0), DataPlaneConfig(), b"secret") as reader:
        with pytest.raises(RegistryUnavailable, match=r"gave no answer within 0\.1 s") as raised:
            await reader.read([Read(("held/o",), "x", None, np.zeros(8, np.uint8))], 0.1)
    assert isinstance(raised.value, BusUnavailable) and isinstance(raised.value, DataPlaneError)
    await redis.aclose()
    server.close()
