"""One way to serve: health that follows the service, reflection, typed errors, drain on stop.

A service is NOT_SERVING until it is set serving, and the server as a whole ("") serves only while
all of its services do. `start` either listens or raises: a taken port is `PortInUse`, an unsafe bind
`InsecureBind`, and nothing is left half-started. `stop` sets NOT_SERVING first, then lets RPCs in
flight finish within `drain_s`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]
from grpc_reflection.v1alpha import reflection

from earl.errors import EarlError, PortInUse
from earl.rpc import auth, options
from earl.rpc.audit import Audit
from earl.rpc.calls import Calls
from earl.rpc.guard import Guard
from earl.rpc.tokens import AcceptedTokens

log = logging.getLogger(__name__)

# How soon an expired or revoked token ends the streams that it opened.
TOKEN_CHECK_S = 1.0

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Server:
    """A gRPC server on the running loop.

    name: for logs. bind: "host:port", port 0 for any free one. tokens: those that are accepted, or one token
    for every role; "" requires none. request_bytes: the largest message that it accepts. audit: takes audited
    and refused calls. Raises InsecureBind off loopback without TLS and a strong token, ConfigError for a
    malformed address.
    """

    def __init__(
        self,
        name: str,
        bind: str,
        *,
        tokens: AcceptedTokens | str = "",
        tls: auth.TlsFiles | None = None,
        drain_s: float = 10.0,
        request_bytes: int = options.MAX_MESSAGE_BYTES,
        audit: Audit | None = None,
    ) -> None:
        self._tokens = tokens if isinstance(tokens, AcceptedTokens) else AcceptedTokens(tokens)
        auth.check_bind(bind, self._tokens, tls)
        self.name = name
        self.address = ""
        self.calls = Calls()
        self._bind = bind
        self._tls = tls
        self._drain_s = drain_s
        self._serving: dict[str, bool] = {}
        self._guard = Guard(self._tokens, self.calls, audit)
        if audit is not None:
            self._tokens.subscribe(lambda words: audit.write("token file", outcome=words))
        self._server = grpc.aio.server(
            interceptors=[self._guard],
            options=options.server(request_bytes),
            maximum_concurrent_rpcs=options.SERVER_CALLS,
        )
        self._health = health_aio.HealthServicer()
        self._stopped = False
        self._watch: asyncio.Task[None] | None = None
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def add(
        self, add_to_server: Callable[[Any, Any], None], servicer: object, full_service_name: str
    ) -> None:
        """Serves `servicer`: add(add_SchedulerServiceServicer_to_server, s, "earl.v1.SchedulerService").

        Raises ConfigError for a service with a method whose contract names no role.
        """
        self._guard.add(full_service_name)
        add_to_server(servicer, self._server)
        self._serving[full_service_name] = True

    async def start(self) -> str:
        """Listen; returns the bound "host:port". Raises PortInUse; ConfigError for unreadable TLS files."""
        names = [*self._serving, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server)
        host, port = auth.split_address(self._bind)
        try:
            if self._tls is None:
                bound = self._server.add_insecure_port(self._bind)
            else:
                bound = self._server.add_secure_port(self._bind, self._tls.server_credentials())
        except RuntimeError as error:
            raise self._cannot_bind() from error
        if bound == 0 or (port and bound != port):
            raise self._cannot_bind()
        await self._server.start()
        self.address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        await self._publish_health()
        if self._tokens.demanded:
            self._watch = asyncio.create_task(self._watch_tokens())
        log.info("%s serves at %s", self.name, self.address)
        return self.address

    async def _watch_tokens(self) -> None:
        """Reads changed tokens, and ends the streams of tokens that are no longer accepted. Never returns."""
        while True:
            await asyncio.sleep(TOKEN_CHECK_S)
            self._tokens.refresh()
            self._guard.streams.end_refused()

    def _cannot_bind(self) -> EarlError:
        return PortInUse(f"{self.name} cannot listen at {self._bind}", "free the port or choose another one")

    async def set_serving(self, full_service_name: str, serving: bool) -> None:
        """Sets whether a service can do its work now; KeyError for a service that was not added."""
        if full_service_name not in self._serving:
            raise KeyError(full_service_name)
        self._serving[full_service_name] = serving
        if self.address:
            await self._publish_health()

    async def _publish_health(self) -> None:
        for name, serving in self._serving.items():
            await self._health.set(name, _SERVING if serving else _NOT_SERVING)
        overall = all(self._serving.values())
        await self._health.set(health.OVERALL_HEALTH, _SERVING if overall else _NOT_SERVING)

    async def stop(self) -> None:
        """Drains and closes: at most `drain_s`, then what still runs is cancelled. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        if self._watch is not None:
            self._watch.cancel()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(self._drain_s if self.address else None)
        log.info("%s stopped", self.name)
