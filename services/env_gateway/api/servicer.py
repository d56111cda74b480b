"""earl.v1.EnvGatewayService: decodes, calls the gateway, encodes; one reader and one writer per stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc

from earl.env.frames import Frames
from earl.rpc.outbox import Outbox
from earl.v1 import env_pb2, env_pb2_grpc
from services.env_gateway.api.streams import exchange, serve_host
from services.env_gateway.gateway import Gateway
from services.env_gateway.state.clients import ClientStream

log = logging.getLogger(__name__)

SERVICE = "earl.v1.EnvGatewayService"
add_to_server = env_pb2_grpc.add_EnvGatewayServiceServicer_to_server


async def _accepted(context: grpc.aio.ServicerContext, frame: Callable[..., Any]) -> Frames:
    """The server's end of a stream, with its initial metadata sent.

    gRPC would send them with the first message: with that write cancelled, by a peer's bad message, they
    would go out twice, which gRPC refuses, and the peer would never get its status. Of a peer that is gone
    the reader learns.
    """
    with suppress(grpc.aio.InternalError):
        await context.send_initial_metadata(())
    return Frames(context, frame)


class EnvGatewayServicer(env_pb2_grpc.EnvGatewayServiceServicer):
    """Serves one Gateway. `run` must run concurrently: it drives the gateway's deadlines."""

    def __init__(self, gateway: Gateway, interval_s: float) -> None:
        self._gateway = gateway
        self._interval_s = interval_s
        self._clients: set[ClientStream] = set()
        self._drained = asyncio.Event()

    async def run(self) -> None:
        """Sweeps the gateway's state periodically until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            self._gateway.sweep(self._interval_s)
            if self._gateway.draining and not self._gateway.sessions:
                self._drained.set()

    async def drain(self, grace_s: float) -> None:
        """Refuses new sessions, waits at most `grace_s` for those in progress, then ends all streams."""
        gateway = self._gateway
        gateway.drain(grace_s)
        if gateway.sessions:
            try:
                async with asyncio.timeout(grace_s):
                    await self._drained.wait()
            except TimeoutError:
                log.warning("stopping with %d sessions open", len(gateway.sessions))
        for client in list(self._clients):
            client.outbox.close()
        for host in list(gateway.pool.hosts.values()):
            host.outbox.close()

    async def Attach(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:
        """Serves the stream of an environment host."""
        await serve_host(self._gateway, await _accepted(context, env_pb2.AttachResponse))

    async def Play(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:
        """Serves the stream of a client."""
        gateway = self._gateway
        client = ClientStream(Outbox())

        def handle(messages: Sequence[env_pb2.ClientMessage]) -> None:
            for message in messages:
                gateway.handle_client(client, message)

        self._clients.add(client)
        try:
            frames = await _accepted(context, env_pb2.PlayResponse)
            await exchange(frames, client.outbox, handle, paced=True)
        finally:
            self._clients.discard(client)
            client.outbox.close()
            gateway.client_left(client)

    async def ListEnvironments(
        self, request: env_pb2.ListEnvironmentsRequest, context: grpc.aio.ServicerContext
    ) -> env_pb2.ListEnvironmentsResponse:
        """Lists the environments that attached hosts serve now, and what waits."""
        return self._gateway.listing()

    async def ListHosts(
        self, request: env_pb2.ListHostsRequest, context: grpc.aio.ServicerContext
    ) -> env_pb2.ListHostsResponse:
        """The attached hosts one by one."""
        return self._gateway.hosts()
