"""Facts of a Redis or Valkey server: `python -m earl.bus.probe`.

Its URL on standard input, so that a password is in no argv; without one an embedded server is started and
probed. {"facts", "error"} as one line of JSON on standard output. skew_s: its clock ahead of that of this
machine, in seconds, uncertain by the time that the answer took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from earl.bus.connection import open_redis, shown_url
from earl.bus.embedded import EmbeddedValkey
from earl.errors import BusUnavailable


async def facts_of(url: str) -> dict[str, Any]:
    """The server's name, version, persistence and clock. Raises BusUnavailable."""
    client = open_redis(url)
    try:
        info = await client.info("everything")
        began_s = time.time()
        seconds, microseconds = await client.time()
        skew_s = seconds + microseconds / 1e6 - (began_s + time.time()) / 2
        policy = info.get("maxmemory_policy", "")
        return {
            "url": shown_url(url),
            "embedded": False,
            "server": "valkey" if "valkey_version" in info else "redis",
            "version": str(info.get("valkey_version") or info.get("redis_version", "")),
            "appendonly": bool(info.get("aof_enabled", 0)),
            "evicts": bool(info.get("maxmemory", 0)) and policy != "noeviction",
            "maxmemory_policy": policy,
            "skew_s": round(skew_s, 4),
        }
    except (RedisError, OSError) as error:
        raise BusUnavailable(
            f"{shown_url(url)} cannot be used: {error}", "start the server or correct bus.redis_url"
        ) from error
    finally:
        await client.aclose()


async def facts_of_embedded() -> dict[str, Any]:
    """`facts_of` an embedded server, which is stopped afterwards. Raises BusUnavailable."""
    server = EmbeddedValkey()
    with tempfile.TemporaryDirectory(prefix="earl-doctor-") as directory:
        try:
            return await facts_of(await server.start(Path(directory))) | {"embedded": True}
        except BusUnavailable as error:
            if not (Path(directory) / "valkey.log").exists():
                raise
            # Its log goes with the directory: the message has its end.
            raise BusUnavailable(
                error.message, "resolve that, or set bus.redis_url to a Redis or Valkey server"
            ) from error
        finally:
            await server.stop()


def main() -> None:
    result: dict[str, Any] = {"facts": {}, "error": None}
    try:
        url = sys.stdin.read().strip()
        result["facts"] = asyncio.run(facts_of(url) if url else facts_of_embedded())
    except BusUnavailable as error:
        result["error"] = {"message": error.message, "remedy": error.remedy}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
