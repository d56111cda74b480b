"""One way to call: every call has a deadline, and only UNAVAILABLE is tried again.

Retries back off exponentially with jitter and end with the call's deadline, so a caller never waits
longer than its deadline. A call may therefore be executed twice: EARL's unary methods are idempotent.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Any

import grpc

from earl.errors import DeadlineExceeded
from earl.loopback import is_loopback
from earl.obs import tracing
from earl.rpc import auth, options
from earl.rpc.errors import code_of, from_call
from earl.rpc.tokens import Token, current
from earl.rpc.watched_files import WatchedFiles
from earl.waiting import cancellable

log = logging.getLogger(__name__)

# What a stream's read() returns once the peer has ended it.
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0
# How long calls in progress may still use a connection that was replaced.
FORMER_S = 10.0
_FAILING = grpc.ChannelConnectivity.TRANSIENT_FAILURE


class Client:
    """Calls one service at one address.

    address: "host:port". stub: generated stub class, for example SchedulerServiceStub. With `tls`, the
    connection is encrypted. The token is sent with every call; a function as `token` is called for each.
    Where no connection succeeds any more, the authority's file is read again. detects_outages: as in
    `options.client`, for a client that opens no streams.
    Raises ConfigError for an address that is none, InsecureCall for a token without TLS off loopback.
    """

    def __init__(
        self,
        address: str,
        stub: type,
        *,
        token: Token = "",
        tls: auth.TlsFiles | None = None,
        detects_outages: bool = False,
    ) -> None:
        auth.split_address(address)
        if token:
            auth.check_call(address, tls)
        self.address = address
        self._token = token
        self._tls = tls
        self._detects_outages = detects_outages
        self._make_stub = stub
        watched = tls.authority if tls is not None else None
        self._authority = WatchedFiles("the authority", watched) if watched else None
        self._closing: set[asyncio.Task[None]] = set()
        self._connect()

    def _connect(self) -> None:
        host, _ = auth.split_address(self.address)
        set_so = options.client(loopback=is_loopback(host), detects_outages=self._detects_outages)
        if self._tls is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=set_so)
        else:
            credentials = self._tls.channel_credentials()
            self._channel = grpc.aio.secure_channel(self.address, credentials, options=set_so)
        self._stub = self._make_stub(self._channel)

    def _method(self, name: str) -> Any:
        """The stub's method, over a new connection if calls fail and the authority's file has changed."""
        former = self._channel
        failing = self._authority is not None and former.get_state() is _FAILING
        if self._authority is not None and failing and self._authority.reload_if_changed(self._connect):
            log.info("the authority changed: %s is called again", self.address)
            closing = asyncio.ensure_future(former.close(FORMER_S))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return getattr(self._stub, name)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return auth.metadata(current(self._token))

    async def call(
        self, method: str, request: Any, *, deadline_s: float, retry_s: float | None = None
    ) -> Any:
        """The response to `request`.

        retry_s: how long calls to a service that cannot be reached are repeated; None: until the deadline.
        Raises the EarlError that the servicer raised; ServiceUnavailable if the service could not be
        reached; DeadlineExceeded if it did not answer within `deadline_s`; RpcError for the rest.
        """
        began = time.monotonic()
        ends = began + deadline_s
        retries_end = ends if retry_s is None else min(ends, began + retry_s)
        traceparent = tracing.current()
        traced = ((tracing.TRACEPARENT, traceparent),) if traceparent else ()
        backoff_s = FIRST_BACKOFF_S
        last: grpc.aio.AioRpcError | None = None
        while (left_s := ends - time.monotonic()) > 0 or last is None:
            try:
                sent = (*self._metadata(), *traced)
                with cancellable():
                    return await self._method(method)(request, timeout=max(left_s, 0.001), metadata=sent)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and last is not None:
                    break  # our own retries shortened the last attempt: the earlier cause explains more
                if code_of(error) is not grpc.StatusCode.UNAVAILABLE:
                    raise self._typed(error, method, deadline_s) from error
                last = error
            pause_s = backoff_s * random.uniform(0.5, 1.0)
            if time.monotonic() + pause_s >= retries_end:
                break
            await asyncio.sleep(pause_s)
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
        assert last is not None
        raise self._typed(last, method, deadline_s) from last

    def _typed(self, error: grpc.aio.AioRpcError, method: str, deadline_s: float) -> Exception:
        typed = from_call(error, f"{method} at {self.address}")
        if type(typed) is DeadlineExceeded and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = f"{method} at {self.address} gave no answer within {deadline_s:g} s"
            return DeadlineExceeded(text, typed.remedy)
        return typed

    def stream(self, method: str, *, deadline_s: float | None) -> Any:
        """A bidirectional call object; None: the stream lives until one side ends it.

        It raises grpc.aio.AioRpcError; `earl.rpc.errors.from_call` makes a typed error of it. It may lose a
        cancellation of its reader when it fails: who opens streams again and again does so within
        `earl.waiting.cancellable`.
        """
        return self._method(method)(timeout=deadline_s, metadata=self._metadata())

    async def close(self) -> None:
        """Closes the connection; calls in flight are cancelled."""
        for closing in self._closing:
            closing.cancel()
        await self._channel.close()
