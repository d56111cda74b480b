"""GET /metrics, served on the loop of the service whose metrics they are.

A scrape reads the service's own figures where they are written, so it needs no lock, and takes a
millisecond or two of that loop. Without scrapes it costs nothing: what renders the text is imported, in a
thread, by the first scrape. A few lines of HTTP/1.1 are enough for that, where an HTTP server would cost
every process 0.2 s of its start.

Promise: nothing that a caller does, or a source raises, disturbs the service: requests are small, few at
once, and answered within REQUEST_S or aborted; connections without a request are closed for new ones.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Sequence
from http import HTTPStatus

from earl.errors import PortInUse, Unauthenticated
from earl.obs.catalogue import Sample, Source
from earl.obs.machine import installed
from earl.rpc.auth import TlsFiles, check_bind, split_address, token_of
from earl.rpc.peers import WILDCARDS, advertised_address
from earl.rpc.token_file import READERS
from earl.rpc.tokens import AcceptedTokens

log = logging.getLogger(__name__)

PATH = "/metrics"
REQUEST_S = 5.0
MAX_REQUEST_BYTES = 8 << 10
MAX_CONNECTIONS = 16


class MetricsEndpoint:
    """Serves the samples of these sources.

    bind: "host:port", port 0 for any free one; "": nothing is served, and the address is "". tokens: a token
    of a viewer or operator, or for every role, is required; "" requires none. Raises InsecureBind
    off loopback without TLS and a strong token, ConfigError for a bind that is none.
    """

    def __init__(
        self,
        bind: str,
        sources: Sequence[Source],
        *,
        tokens: AcceptedTokens | str = "",
        tls: TlsFiles | None = None,
    ) -> None:
        self._tokens = tokens if isinstance(tokens, AcceptedTokens) else AcceptedTokens(tokens)
        if bind:
            check_bind(bind, self._tokens, tls)
        self.address = ""
        self._bind = bind
        self._sources = (_build, *sources)
        self._tls = tls
        self._server: asyncio.Server | None = None
        # Connections, the oldest first, and whether each has sent a request.
        self._open: dict[asyncio.StreamWriter, bool] = {}

    async def start(self) -> str:
        """Listen; returns "host:port", as others reach it.

        Raises PortInUse, ConfigError for unreadable TLS files.
        """
        if not self._bind:
            return ""
        host, port = split_address(self._bind)
        tls = self._tls
        secured = (
            {"ssl": tls.server_certificate().context(), "ssl_handshake_timeout": REQUEST_S} if tls else {}
        )
        try:
            self._server = await asyncio.start_server(
                self._accept, host, port, limit=MAX_REQUEST_BYTES, **secured
            )
        except OSError as error:
            raise PortInUse(
                f"obs.metrics = {self._bind!r} cannot be used: {error.strerror}",
                "free the port, or set obs.metrics to another one",
            ) from error
        bound = self._server.sockets[0].getsockname()[1]
        address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        self.address = advertised_address(address, keep_port=True) if host in WILDCARDS else address
        return self.address

    async def close(self) -> None:
        """Stop, aborting open connections. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS and not self._abort_oldest_idle():
            writer.transport.abort()
            return
        self._open[writer] = False
        try:
            async with asyncio.timeout(REQUEST_S):
                await self._answer(reader, writer)
            writer.close()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # a caller that is slow, gone or no HTTP client
        finally:
            self._open.pop(writer, None)

    def _abort_oldest_idle(self) -> bool:
        """Aborts the oldest connection without a request yet; returns whether there was one."""
        idle = next((writer for writer, requested in self._open.items() if not requested), None)
        if idle is not None:
            del self._open[idle]
            idle.transport.abort()
        return idle is not None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        if writer in self._open:
            self._open[writer] = True
        status, body, kind = await self._response(head)
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        if status is HTTPStatus.UNAUTHORIZED:
            lines.append("WWW-Authenticate: Bearer")
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        await writer.drain()

    async def _response(self, head: str) -> tuple[HTTPStatus, bytes, str]:
        request, *fields = head.split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in fields)
        }
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if path != PATH:
            return _plain(HTTPStatus.NOT_FOUND)
        if method != "GET":
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        self._tokens.refresh()  # a process that serves no gRPC with them refreshes them nowhere else
        try:
            bearer = self._tokens.identify(token_of(headers.items()))
        except Unauthenticated:
            return _plain(HTTPStatus.UNAUTHORIZED)
        if bearer.role not in (None, *READERS):
            return _plain(HTTPStatus.FORBIDDEN)
        try:
            await asyncio.to_thread(importlib.import_module, "prometheus_client.exposition")
            from earl.obs.exposition import exposition

            body, kind = exposition(
                (sample for source in self._sources for sample in source()), headers.get("accept", "")
            )
        except Exception:
            log.exception("the metrics could not be read")
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)
        return HTTPStatus.OK, body, kind


def _plain(status: HTTPStatus) -> tuple[HTTPStatus, bytes, str]:
    return status, f"{status.phrase}\n".encode(), "text/plain; charset=utf-8"


def _build() -> list[Sample]:
    return [Sample("earl_build_info", 1.0, {"version": installed("earl")})]
