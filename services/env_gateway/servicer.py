"""earl.v1.EnvGatewayService: decodes, calls the gateway, encodes; one reader and one writer per stream."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from earl.errors import DeadlineExceeded, EnvProtocolError
from earl.rpc.client import EOF
from earl.rpc.outbox import Outbox
from earl.v1 import env_pb2, env_pb2_grpc
from services.env_gateway.clients import ClientStream
from services.env_gateway.gateway import Gateway
from services.env_gateway.pool import Host

log = logging.getLogger(__name__)

SERVICE = "earl.v1.EnvGatewayService"
add_to_server = env_pb2_grpc.add_EnvGatewayServiceServicer_to_server
HELLO_S = 10.0


class EnvGatewayServicer(env_pb2_grpc.EnvGatewayServiceServicer):
    """Serves one Gateway. `run` must run beside it: it is the gateway's sense of time."""

    def __init__(self, gateway: Gateway, interval_s: float) -> None:
        self._gateway = gateway
        self._interval_s = interval_s
        self._clients: set[ClientStream] = set()
        self._drained = asyncio.Event()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            self._gateway.sweep(self._interval_s)
            if self._gateway.draining and not self._gateway.sessions:
                self._drained.set()

    async def drain(self, grace_s: float) -> None:
        """Refuse new sessions, wait at most `grace_s` for those under way, then end all streams."""
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

    async def Attach(self, request_iterator: Any, context: Any) -> None:
        """An env host's stream."""
        hello, rest = await self._hello(context)
        outbox = Outbox()
        host = self._gateway.attach(hello, outbox)
        epoch = host.epoch
        clean = False

        async def read() -> bool:
            self._said(host, epoch, rest)
            while (request := await context.read()) is not EOF:
                self._said(host, epoch, request.messages)
            return True

        async def write(messages: list[env_pb2.GatewayMessage]) -> None:
            await context.write(env_pb2.AttachResponse(messages=messages))

        try:
            clean = await _until_either(read(), outbox.drain_to(write))
        finally:
            outbox.close()
            self._gateway.detach(host, epoch, clean)

    async def _hello(self, context: Any) -> tuple[env_pb2.Hello, Any]:
        try:
            async with asyncio.timeout(HELLO_S):
                request = await context.read()
        except TimeoutError:
            raise DeadlineExceeded(f"no Hello within {HELLO_S:g} s of connecting") from None
        if request is EOF or not request.messages:
            raise EnvProtocolError("the stream ended before Hello")
        first = request.messages[0]
        if first.WhichOneof("message") != "hello":
            raise EnvProtocolError(f"first message is {first.WhichOneof('message')}", "begin with Hello")
        return first.hello, request.messages[1:]

    def _said(self, host: Host, epoch: int, messages: Any) -> None:
        gateway = self._gateway
        gateway.heard(host, epoch)
        for message in messages:
            gateway.host_said(host, epoch, message)

    async def Play(self, request_iterator: Any, context: Any) -> None:
        """A client's stream."""
        gateway = self._gateway
        client = ClientStream(Outbox())
        self._clients.add(client)

        async def read() -> bool:
            while (request := await context.read()) is not EOF:
                for message in request.messages:
                    gateway.client_said(client, message)
            return True

        async def write(messages: list[env_pb2.SessionMessage]) -> None:
            await context.write(env_pb2.PlayResponse(messages=messages))

        try:
            await _until_either(read(), client.outbox.drain_to(write))
        finally:
            self._clients.discard(client)
            client.outbox.close()
            gateway.client_left(client)

    async def ListEnvironments(self, request: Any, context: Any) -> env_pb2.ListEnvironmentsResponse:
        """What attached hosts serve now."""
        return self._gateway.listing()


async def _until_either(read: Any, write: Any) -> bool:
    """Run both until one ends; raises what it raised. True if the peer ended its side."""
    reader, writer = asyncio.create_task(read), asyncio.create_task(write)
    try:
        done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        if writer in done:
            writer.result()
        return reader.result() if reader in done else False
    finally:
        for task in (reader, writer):
            task.cancel()
        await asyncio.wait({reader, writer})
        for task in (reader, writer):
            if not task.cancelled():
                task.exception()  # the first one was raised above; the other follows from it
