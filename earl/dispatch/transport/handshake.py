"""The handshake in which reader and serving process prove that they hold the run's secret, over TCP.

Only then does either parse the other's address: UCX aborts on garbage, and who holds an address reads
memory. The socket stays open: its end is the peer's end, and it carries the heartbeats by which a reader
knows that its peer is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from typing import Any

from earl.dispatch.transport import wire
from earl.errors import PeerLost, TransportUnavailable
from earl.loopback import is_loopback

# The most heartbeats that are answered at once.
_BEATS = 64


async def greet(
    address: str, peer: str, secret: bytes, ucx_address: bytes, number: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, wire.Welcome, bytes]:
    """Connects to host:port: the open socket, the answer and the session's key.

    ucx_address, number: this side's UCX address, empty for NIXL, and its number of the connection.

    Raises PeerLost, OSError or EOFError when nobody answers, TransportUnavailable for another run's.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        challenge = await read_message(reader, wire.Challenge)
        if challenge.magic != wire.MAGIC:
            raise wire.FrameError(f"protocol {challenge.magic!r}, not {wire.MAGIC!r}")
        nonce = secrets.token_bytes(wire.NONCE_BYTES)
        proof = wire.hello_mac(secret, challenge, nonce, ucx_address, number)
        writer.write(wire.encode(wire.Hello(nonce, ucx_address, number, proof)))
        try:
            welcome = await read_message(reader, wire.Welcome)
        except EOFError:
            raise PeerLost(
                f"{peer} closed the connection during the handshake", "it died, or serves another run"
            ) from None
        expected = wire.welcome_mac(secret, challenge, nonce, welcome.offer, welcome.connection)
        if not hmac.compare_digest(expected, welcome.mac):
            raise wire.FrameError("a welcome with a wrong MAC")
    except wire.FrameError as error:
        writer.close()
        raise TransportUnavailable(
            f"{peer} is not this run's: {error.message}", "read a newer descriptor"
        ) from error
    except BaseException:
        writer.close()
        raise
    return reader, writer, welcome, wire.session_key(secret, challenge, nonce)


async def receive_hello(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes
) -> tuple[wire.Hello, wire.Challenge]:
    """The serving side's first half: a reader's hello, its MAC checked. Raises FrameError, EOFError."""
    challenge = wire.Challenge(wire.MAGIC, secrets.token_bytes(wire.NONCE_BYTES))
    writer.write(wire.encode(challenge))
    hello: wire.Hello = await read_message(reader, wire.Hello)
    proof = wire.hello_mac(secret, challenge, hello.nonce, hello.ucx_address, hello.connection)
    if not hmac.compare_digest(proof, hello.mac):
        raise wire.FrameError("a hello with a wrong MAC")
    return hello, challenge


async def welcome(
    writer: asyncio.StreamWriter,
    secret: bytes,
    challenge: wire.Challenge,
    hello: wire.Hello,
    address: bytes,
    number: int,
) -> None:
    """The serving side's second half: send a reader whose hello was checked the address of this side."""
    proof = wire.welcome_mac(secret, challenge, hello.nonce, address, number)
    writer.write(wire.encode(wire.Welcome(address, number, proof)))
    await writer.drain()


async def answer_beats(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends a reader's heartbeats back until it has closed its end, or can no longer be reached."""
    with contextlib.suppress(OSError):
        while beats := await reader.read(_BEATS):
            writer.write(beats)
            await writer.drain()


async def read_message(reader: asyncio.StreamReader, kind: type) -> Any:
    """One handshake message. Raises FrameError, and EOFError when the peer closes."""
    head = await reader.readexactly(4)
    length = int.from_bytes(head, "little")
    if length > wire.HANDSHAKE_FRAME_BYTES:
        raise wire.FrameError(f"a handshake frame of {length} bytes")
    return wire.decode(await reader.readexactly(length), kind)


def check_dialled(owner: str, address: str, *, trusted: bool) -> None:
    """Raises TransportUnavailable for a host:port off loopback, unless the network is trusted."""
    if not trusted and not is_loopback(address.rpartition(":")[0].strip("[]")):
        raise TransportUnavailable(
            f"{owner} at {address} is off loopback and the wire carries no TLS",
            "set data_plane.trusted_network = true",
        )
