"""One way to reach Redis or Valkey: bounded waits, and one typed error that hides the password.

A server that is away is tried again, half a second later at most each time, for as long as the client is
made for. The kernel tells within some seconds that a connection's other end cannot be reached any more, even
if the network loses every packet; so a command is sent again soon after a network is back.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.connection import (
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from earl.errors import BusUnavailable

CONNECT_S = 2.0
# Longest silence of the server within one answer; blocking reads ask for less than this.
ANSWER_S = 10.0
RETRIES = 3
# A connection whose other end acknowledges nothing for UNREACHED_S is ended. Idle ones ask every second.
UNREACHED_S = 2
_KEEPALIVE = {
    socket.TCP_KEEPIDLE: 1,
    socket.TCP_KEEPINTVL: 1,
    socket.TCP_KEEPCNT: UNREACHED_S,
    socket.TCP_USER_TIMEOUT: 1000 * UNREACHED_S,
}
T = TypeVar("T")


def shown_url(url: str) -> str:
    """The URL as it may be printed: its password replaced by stars."""
    url = re.sub(r"//([^:@/]*):([^@]*)@", r"//\1:***@", url)
    return re.sub(r"([?&]password=)[^&]*", r"\1***", url)


def open_redis(url: str, outage_s: float = 0.0) -> redis.asyncio.Redis:
    """A client of `url` (redis://, rediss:// or unix://) with bounded waits; it connects when used.

    outage_s: how long a command tries a server that cannot be reached; 0: RETRIES times.
    Raises BusUnavailable when the URL cannot be understood.
    """
    try:
        options: dict[str, Any] = dict(parse_url(url))
    except ValueError as error:
        raise BusUnavailable(
            f"bus.redis_url {shown_url(url)!r} is no Redis URL: {error}",
            "write redis://[:password@]host:port, rediss:// for TLS, or unix://[:password@]/path/to/socket",
        ) from error
    kind = options.get("connection_class", Connection)
    if kind is not UnixDomainSocketConnection:
        options |= {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
    options |= {
        "connection_class": _CLASSES[kind],
        "socket_connect_timeout": CONNECT_S,
        "socket_timeout": ANSWER_S,
        "retry": _OutageRetry(outage_s) if outage_s else Retry(_backoff(), RETRIES),
        "protocol": 2,
        "decode_responses": False,
    }
    return redis.asyncio.Redis.from_pool(ConnectionPool(**options))


def _backoff() -> ExponentialWithJitterBackoff:
    return ExponentialWithJitterBackoff(base=0.05, cap=0.5)


class _OutageRetry(Retry):
    """Repeats what fails because the server cannot be reached for some seconds rather than some times."""

    def __init__(self, outage_s: float) -> None:
        super().__init__(_backoff(), -1)
        self._outage_s = outage_s

    async def call_with_retry(
        self, do: Callable[[], Awaitable[T]], fail: Callable[..., Any], *args: Any, **options: Any
    ) -> T:
        ends_s = time.monotonic() + self._outage_s

        async def failed(error: Exception, *counts: int) -> None:
            await fail(error, *counts)
            if time.monotonic() >= ends_s:
                raise error

        return await super().call_with_retry(do, failed, *args, **options)


class _Cancellable:
    """A connection whose sends can be cancelled, and end typed where the connection has ended.

    redis-py sends within asyncio.wait_for, which on Python 3.11 loses a cancellation that arrives as
    the send completes (gh-86296): the task then lives on. asyncio.timeout does not. On a connection that the
    kernel has just ended uvloop raises RuntimeError, which redis-py does not take for the loss that it is.
    """

    async def send_packed_command(self: Any, command: Any, check_health: bool = True) -> None:
        limit_s, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(limit_s):
                await super().send_packed_command(command, check_health)  # type: ignore[misc]
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise RedisTimeoutError("Timeout writing to socket") from None
        except RuntimeError as error:
            raise RedisConnectionError(f"the connection has ended: {error}") from error
        finally:
            self.socket_timeout = limit_s


class _Connection(_Cancellable, Connection):
    pass


class _SSLConnection(_Cancellable, SSLConnection):
    pass


class _UnixConnection(_Cancellable, UnixDomainSocketConnection):
    pass


_CLASSES = {
    Connection: _Connection,
    SSLConnection: _SSLConnection,
    UnixDomainSocketConnection: _UnixConnection,
}


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
            remedy = "start the server or correct bus.redis_url; leave it empty for the embedded Valkey"
        reason = str(error) or "it gave no answer in time"
        raise BusUnavailable(f"Redis at {shown_url(url)} failed: {reason}", remedy) from error
