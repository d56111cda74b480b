"""`python -m earl.bus.ping`: does the Redis or Valkey of EARL_REDIS_URL (or EARL_REDIS_URL_FILE) answer?

For health checks of containers: exit code 0 if it does, otherwise one line with the reason and another code.
"""

from __future__ import annotations

import asyncio

from earl.bus.connection import open_redis, redis_errors
from earl.rpc.main import run
from earl.rpc.peers import peer


async def ping(stop: asyncio.Event) -> None:
    """Sends one PING to the server at EARL_REDIS_URL. Raises BusUnavailable, ConfigError."""
    url = peer("EARL_REDIS_URL")
    client = open_redis(url)
    try:
        with redis_errors(url):
            await client.ping()
    finally:
        await client.aclose()


if __name__ == "__main__":
    run(ping)
