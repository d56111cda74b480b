"""The reader's end of one connection: handshake, endpoint, and the socket whose end is the peer's end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
from typing import Any

import numpy as np

from earl.dispatch.transport import wire
from earl.dispatch.transport.base import settle
from earl.dispatch.transport.ucx_node import Endpoint, Node
from earl.errors import PeerLost, TransportUnavailable


class Connection:
    """`alive` until either side ended it; `retired` when this side gave it up with requests under way."""

    def __init__(
        self, endpoint: Endpoint, number: int, server_number: int, key: bytes, writer: asyncio.StreamWriter
    ) -> None:
        self._endpoint = endpoint
        self._number = number
        self._server_number = server_number
        self._key = key
        self._writer = writer
        self._watching: asyncio.Task[None] | None = None
        self._seq = 0
        self.window = asyncio.Semaphore(wire.WINDOW)
        self.retired = False

    @classmethod
    async def open(cls, node: Node, address: str, peer: str, number: int, secret: bytes) -> Connection:
        """Connect and prove that both sides hold the run's secret.

        Raises PeerLost, OSError or EOFError when nobody answers, TransportUnavailable for another run's.
        """
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            challenge = await read_message(reader, wire.Challenge)
            if challenge.magic != wire.MAGIC:
                raise wire.FrameError(f"protocol {challenge.magic!r}, not {wire.MAGIC!r}")
            nonce = secrets.token_bytes(wire.NONCE_BYTES)
            proof = wire.hello_mac(secret, challenge, nonce, node.address, number)
            writer.write(wire.encode(wire.Hello(nonce, node.address, number, proof)))
            try:
                welcome = await read_message(reader, wire.Welcome)
            except EOFError:
                raise PeerLost(
                    f"{peer} closed the connection during the handshake", "it died, or serves another run"
                ) from None
            expected = wire.welcome_mac(secret, challenge, nonce, welcome.ucx_address, welcome.connection)
            if expected != welcome.mac:
                raise wire.FrameError("a welcome with a wrong MAC")
        except wire.FrameError as error:
            writer.close()
            raise TransportUnavailable(
                f"{peer} is not this run's: {error.message}", "read a newer descriptor"
            ) from error
        except BaseException:
            writer.close()
            raise
        endpoint = node.connect(welcome.ucx_address, peer)
        key = wire.session_key(secret, challenge, nonce)
        connection = cls(endpoint, number, welcome.connection, key, writer)
        connection._watching = asyncio.create_task(connection._watch(reader), name=f"watch {peer}")
        return connection

    @property
    def peer(self) -> str:
        return self._endpoint.peer

    @property
    def alive(self) -> bool:
        return self._endpoint.alive

    def next_seq(self) -> int:
        self._seq = (self._seq + 1) % (1 << wire.SEQ_BITS)
        return self._seq

    def exchange(
        self, request: wire.Request, payload: np.ndarray, status: np.ndarray
    ) -> list[asyncio.Future[None]]:
        """Receives are posted before the request leaves, so that payloads land in place."""
        seq = request.seq
        frame = wire.encode_request(request, self._key)
        return [
            self._endpoint.receive(payload, wire.payload_tag(self._number, seq)),
            self._endpoint.receive(status, wire.status_tag(self._number, seq)),
            self._endpoint.send(frame, wire.request_tag(self._server_number)),
        ]

    def lose(self) -> None:
        """End it now; requests under way fail with PeerLost."""
        self._endpoint.abort()
        self._writer.close()

    async def close(self) -> None:
        """End it and wait for its watcher."""
        self.lose()
        if self._watching is not None:
            self._watching.cancel()
            await settle(self._watching)

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            await reader.read(1)  # nothing is ever sent here: whatever ends it ends the connection
        self.lose()


async def read_message(reader: asyncio.StreamReader, kind: type) -> Any:
    """One handshake message. Raises FrameError, and EOFError when the peer closes."""
    head = await reader.readexactly(4)
    length = int.from_bytes(head, "little")
    if length > wire.HANDSHAKE_FRAME_BYTES:
        raise wire.FrameError(f"a handshake frame of {length} bytes")
    return wire.decode(await reader.readexactly(length), kind)


def is_loopback(address: str) -> bool:
    """True for host:port on this machine's loopback."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
