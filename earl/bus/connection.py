"""One way to reach Redis or Valkey: bounded waits, and one typed error that hides the password."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from earl.errors import BusUnavailable

CONNECT_S = 3.0
# Longest silence of the server within one answer; blocking reads ask for less than this.
ANSWER_S = 10.0
RETRIES = 3


def shown_url(url: str) -> str:
    """The URL as it may be printed: its password replaced by stars."""
    url = re.sub(r"//([^:@/]*):([^@]*)@", r"//\1:***@", url)
    return re.sub(r"([?&]password=)[^&]*", r"\1***", url)


def open_redis(url: str) -> redis.asyncio.Redis:
    """A client of `url` (redis://, rediss:// or unix://) with bounded waits; it connects when used.

    Raises BusUnavailable when the URL cannot be understood.
    """
    try:
        return redis.asyncio.Redis.from_url(
            url,
            socket_connect_timeout=CONNECT_S,
            socket_timeout=ANSWER_S,
            retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), RETRIES),
            protocol=2,
            decode_responses=False,
        )
    except ValueError as error:
        raise BusUnavailable(
            f"bus.redis_url {shown_url(url)!r} is no Redis URL: {error}",
            "write redis://[:password@]host:port, or unix://[:password@]/path/to/socket",
        ) from error


@contextmanager
def redis_errors(url: str) -> Iterator[None]:
    """Turns what redis-py raises within the block into BusUnavailable that names `url`."""
    try:
        yield
    except (AuthenticationError, NoPermissionError) as error:
        raise BusUnavailable(
            f"Redis at {shown_url(url)} refused the credentials: {error}",
            "put the right password into bus.redis_url",
        ) from error
    except (RedisError, OSError, TimeoutError) as error:
        # redis-py names a refused password only in the text when AUTH was never sent.
        if "NOAUTH" in str(error) or "WRONGPASS" in str(error):
            remedy = "put the right password into bus.redis_url"
        else:
            remedy = "start the server or mend bus.redis_url; leave it empty for the embedded Valkey"
        raise BusUnavailable(f"Redis at {shown_url(url)} failed: {error}", remedy) from error
