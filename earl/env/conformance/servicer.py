"""earl.v1.EnvGatewayService as the examiner serves it: Attach alone, on loopback or with TLS and a token.

    async with examining("127.0.0.1:0", token) as examiner:      hosts dial examiner.address
        examiner.dial("127.0.0.1:7001")                          or listen there (EnvHostService)
        link = await examiner.host(within_s=60)

Each instance that says Hello is one HostLink, over all its streams. A ping goes to each host every
quarter of its lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from earl.env.conformance.host_link import HostLink
from earl.errors import DeadlineExceeded, EarlError, EnvProtocolError
from earl.rpc.auth import TlsFiles
from earl.rpc.client import EOF, Client
from earl.rpc.errors import from_call
from earl.rpc.outbox import Outbox
from earl.rpc.server import Server
from earl.v1 import env_pb2
from earl.waiting import cancellable, until_first

log = logging.getLogger(__name__)

SERVICE = "earl.v1.EnvGatewayService"
HELLO_S = 10.0
LEASE_S = 5.0
# Between two dials of a host that listens.
PAUSE_S = 0.1
MAX_TEXT_BYTES = 1 << 20


class Examiner:
    """The hosts that dialled, in their order."""

    def __init__(self, token: str, tls: TlsFiles | None, lease_s: float, max_text_bytes: int) -> None:
        self.address = ""
        self._token = token
        self._tls = tls
        self._dialling: set[asyncio.Task[None]] = set()
        # Why the last stream failed before a host could be examined.
        self.refused: EarlError | None = None
        self._lease_s = lease_s
        self._max_text_bytes = max_text_bytes
        self._links: dict[int, HostLink] = {}
        self._new: asyncio.Queue[HostLink] = asyncio.Queue()

    async def host(self, within_s: float) -> HostLink:
        """The next host that attached. Raises DeadlineExceeded, or why the last one that tried could not."""
        try:
            async with asyncio.timeout(within_s):
                return await self._new.get()
        except TimeoutError:
            if self.refused is not None:
                raise self.refused from None
            text = f"no host dialled {self.address} within {within_s:g} s"
            raise DeadlineExceeded(text, "start it with this address as its gateway") from None

    async def attach(self, request_iterator: Any, context: Any) -> None:
        """The Attach method. Frames are bytes in both directions."""
        await self._stream(context)

    def dial(self, address: str) -> None:
        """Dials a host that listens, and again whenever its stream has ended."""
        self._dialling.add(asyncio.create_task(self._dial(address)))

    async def _dial(self, address: str) -> None:
        client = Client(address, _Serve, token=self._token, tls=self._tls)
        try:
            while True:
                call = client.stream("Serve", deadline_s=None)
                try:
                    with cancellable():
                        await self._stream(call)
                except EarlError as error:
                    log.info("stream to %s ended: %s", address, error)
                except grpc.aio.AioRpcError as error:
                    self.refused = from_call(error, f"Serve at {address}")
                finally:
                    call.cancel()
                await asyncio.sleep(PAUSE_S)
        finally:
            await client.close()

    async def _stream(self, end: Any) -> None:
        """Serves one stream from its Hello on. end: a servicer's context or a client's call."""
        hello, rest = await self._hello(end)
        known = self._links.get(hello.instance)
        link = known or HostLink(self._lease_s, self._max_text_bytes, time.monotonic)
        outbox = Outbox()
        try:
            link.attach(hello, outbox)
        except EnvProtocolError as error:
            self.refused = error
            raise
        if known is None:
            self._links[hello.instance] = link
            self._new.put_nowait(link)
        try:
            await self._converse(link, outbox, rest, end)
        finally:
            outbox.close()
            link.lost(hello.epoch)

    async def _hello(self, end: Any) -> tuple[Any, Any]:
        try:
            async with asyncio.timeout(HELLO_S):
                raw = await end.read()
            messages = messages_of(raw) if raw is not EOF else ()
        except TimeoutError:
            self.refused = DeadlineExceeded(f"a host sent no Hello within {HELLO_S:g} s", "begin with it")
            raise self.refused from None
        except EnvProtocolError as error:
            self.refused = error
            raise
        if not messages or messages[0].WhichOneof("message") != "hello":
            self.refused = EnvProtocolError("the first message of a host is not Hello", "begin with it")
            raise self.refused
        return messages[0].hello, messages[1:]

    async def _converse(self, link: HostLink, outbox: Outbox, rest: Any, end: Any) -> None:
        """Reads and writes until one side ends the stream."""

        async def read() -> None:
            for message in rest:
                link.received(message)
            while (raw := await end.read()) is not EOF:
                try:
                    messages = messages_of(raw)
                except EnvProtocolError as error:
                    link.judge.violated("frames", error.message)
                    raise
                if not outbox.closed:  # else a newer stream has taken over
                    for message in messages:
                        link.received(message)

        async def write(messages: list[Any]) -> None:
            await end.write(env_pb2.AttachResponse(messages=messages).SerializeToString())

        await until_first(read(), outbox.drain_to(write), self._ping(link))

    async def _ping(self, link: HostLink) -> None:
        while True:
            if not link.unanswered_s():
                link.ping()
            await asyncio.sleep(self._lease_s / 4)

    async def close(self) -> None:
        """Ends all streams."""
        for task in self._dialling:
            task.cancel()
        for link in self._links.values():
            link.hang_up()
        await asyncio.gather(*self._dialling, return_exceptions=True)


def messages_of(raw: bytes) -> Sequence[Any]:
    """The HostMessages of an AttachRequest. Raises EnvProtocolError.

    Read from raw bytes here, not by gRPC: what cannot be decoded is a finding, not a lost stream.
    """
    try:
        return env_pb2.AttachRequest.FromString(raw).messages
    except DecodeError as error:
        raise EnvProtocolError(
            f"{len(raw)} bytes are no AttachRequest: {error}", "is every text in it valid UTF-8?"
        ) from error


class _Serve:
    """EnvHostService's stub without serializers: its frames are Attach's, with the ends swapped."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.Serve = channel.stream_stream("/earl.v1.EnvHostService/Serve")


@asynccontextmanager
async def examining(
    bind: str,
    token: str,
    *,
    tls: TlsFiles | None = None,
    lease_s: float = LEASE_S,
    max_text_bytes: int = MAX_TEXT_BYTES,
) -> AsyncIterator[Examiner]:
    """An Examiner that is served at `bind`. Raises PortInUse, InsecureBind."""
    examiner = Examiner(token, tls, lease_s, max_text_bytes)

    def add(servicer: Any, server: Any) -> None:
        # No deserializer: frames are judged as they came.
        method = grpc.stream_stream_rpc_method_handler(servicer.attach)
        handler = grpc.method_handlers_generic_handler(SERVICE, {"Attach": method})
        server.add_generic_rpc_handlers((handler,))

    server = Server("conformance", bind, tokens=token, tls=tls, drain_s=1.0)
    server.add(add, examiner, SERVICE)
    examiner.address = await server.start()
    try:
        yield examiner
    finally:
        await examiner.close()
        await server.stop()
