"""Frames of the wire protocol: the messages between a reader and a serving process. Pure.

```
reader                                   serving process
  ── TCP connect ─────────────────────────►     a socket that stays open: its end is the peer's end
  ◄─────────────────────── Challenge ──────
  ── Hello (UCX address, MAC) ────────────►
  ◄──────── Welcome (UCX address, MAC) ────     both now hold a UCX endpoint and a session key
  == UCX: Request (pieces, MAC) ==========►     tag (connection, 0)
  ◄== UCX: payload, then Status ===========     tags (reader's connection, 2·seq), (…, 2·seq + 1)
  ── a byte, while it waits ──────────────►     on the socket: a heartbeat, which
  ◄─────────────────────── the same byte ──     the serving process sends back
```
Both sides prove that they hold the run's secret before either parses the other's UCX address. A
frame is a 4-byte length, that many bytes of msgpack, and for requests a 16-byte MAC. Sizes are
bounded before anything is allocated.
"""

from __future__ import annotations

import hmac
import struct
from functools import lru_cache
from typing import Annotated

import msgspec
import numpy as np

from earl.dispatch.describe.pieces import most_blocks
from earl.errors import EarlError, PeerLost, RegionGone

MAGIC = "earl-read-3"
# The most payload of a request; large reads are many requests. Each costs both sides a millisecond of Python:
# longer ones pay where neither side has to buffer or digest all of it.
CHUNK_BYTES = 16 << 20
IN_PLACE_CHUNK_BYTES = 64 << 20
MAX_PIECES = 1024
# The most bytes of a region.
MOST_BYTES = (1 << 40) - 1
# Blocks to digest for one request, and the largest: what a server hashes at a time.
MAX_BLOCKS = 256
MAX_BLOCK_BYTES = 1 << 20
REQUEST_FRAME_BYTES = 128 << 10
HANDSHAKE_FRAME_BYTES = 8 << 10
# Requests in flight on one connection.
WINDOW = 3
NONCE_BYTES = 32
MAC_BYTES = 16
SEQ_BITS = 30
_LENGTH = struct.Struct("<I")
_FOREIGN = "the peer is not an EARL data plane"
# Bounds of a piece's columns, in the order of `Request`; the number of regions bounds the first one.
_LEAST = np.array([0, 0, 1, 1, 0])
_MOST = np.array([MAX_PIECES, MOST_BYTES, IN_PLACE_CHUNK_BYTES, IN_PLACE_CHUNK_BYTES, MOST_BYTES])
# Requests whose checked pieces are remembered: readers send the same ones version after version.
_CHECKED = 64

Natural = Annotated[int, msgspec.Meta(ge=0)]


class Challenge(msgspec.Struct, frozen=True):
    """The server's first message: a random nonce, so that no handshake can be replayed."""

    magic: str
    nonce: bytes


class Hello(msgspec.Struct, frozen=True):
    """connection: the reader's number of it, upper half of the tags it receives on."""

    nonce: bytes
    ucx_address: bytes
    connection: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    mac: bytes


class Welcome(msgspec.Struct, frozen=True):
    """offer: the server's UCX address or its NixlOffer; NIXL came after the name that it has in the frame.
    connection: the server's number of it, upper half of the tag it receives requests on.
    """

    offer: bytes = msgspec.field(name="ucx_address")
    connection: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    mac: bytes


class Request(msgspec.Struct, frozen=True, array_like=True):
    """Send these pieces end to end. block_bytes: also digest the region blocks they touch; 0 for none.

    regions: little-endian uint64[N, 2], slot and generation; pieces: int64[P, 5], index of the region,
    bytes from its start to the first run, rows, run and stride in bytes, as in `Pieces`.
    """

    seq: Annotated[int, msgspec.Meta(ge=0, lt=1 << SEQ_BITS)]
    arena_nonce: Natural
    block_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCK_BYTES)]
    regions: bytes
    pieces: bytes

    def region_table(self) -> np.ndarray:
        return np.frombuffer(self.regions, "<u8").reshape(-1, 2)


class Status(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of a request. error: "" or the name of an error, which message then explains.

    payload_digest: xxh3-64 of the payload; block_digests: of the blocks that the pieces
    touch, sorted by region and block.
    """

    error: str
    message: str
    payload_digest: int
    block_digests: tuple[int, ...]


class FrameError(EarlError):
    """A frame that breaks the protocol; the connection is closed."""


def encode(message: msgspec.Struct) -> bytes:
    """A frame without a MAC."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def body_of(frame: bytes | memoryview, trailer_bytes: int = 0) -> memoryview:
    """The body in a buffer that may be longer than the frame. Raises FrameError when it is truncated."""
    view = memoryview(frame)
    if len(view) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(view)
        if _LENGTH.size + length + trailer_bytes <= len(view):
            return view[_LENGTH.size : _LENGTH.size + length]
    raise FrameError(f"a frame longer than its {len(view)} bytes", _FOREIGN)


def decode(body: bytes | memoryview, kind: type):
    """The message. Raises FrameError when it is not one of this kind."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise FrameError(f"no {kind.__name__}: {error}", "the peer speaks another protocol") from error


def encode_request(request: Request, key: bytes) -> bytes:
    """The frame with its MAC. Raises FrameError when it is too long."""
    frame = encode(request)
    if len(frame) + MAC_BYTES > REQUEST_FRAME_BYTES:
        raise FrameError(f"a request of {len(frame)} bytes", "request fewer pieces at once")
    return frame + mac(key, frame)


def decode_request(frame: memoryview, key: bytes) -> Request:
    """The request, its MAC and bounds checked. Raises FrameError."""
    body = body_of(frame, MAC_BYTES)
    signed = len(body) + _LENGTH.size
    if not hmac.compare_digest(mac(key, frame[:signed]), bytes(frame[signed : signed + MAC_BYTES])):
        raise FrameError("a request with a wrong MAC", "the peer does not hold this run's secret")
    request: Request = decode(body, Request)
    _check(request)
    return request


def _check(request: Request) -> None:
    """Raises FrameError unless the tables are whole, and small enough that no sum of theirs overflows."""
    if len(request.regions) % 16 or len(request.pieces) % 40:
        raise FrameError(f"tables of {len(request.regions)} and {len(request.pieces)} bytes", "")
    regions = request.region_table()
    _check_pieces(request.pieces, len(regions), request.block_bytes)
    if int(regions[:, 0].max()) >= 1 << 32:
        raise FrameError("a slot out of bounds", _FOREIGN)


@lru_cache(maxsize=_CHECKED)
def _check_pieces(pieces: bytes, regions: int, block_bytes: int) -> None:
    table = np.frombuffer(pieces, "<i8").reshape(-1, 5)
    if not 1 <= len(table) <= MAX_PIECES or not 1 <= regions <= MAX_PIECES:
        raise FrameError(f"{len(table)} pieces of {regions} regions", f"request 1 to {MAX_PIECES}")
    region, _, rows, run, stride = table.T
    outside = (table < _LEAST).any() or (table > _MOST).any() or region.max() >= regions
    if outside or (rows * stride.astype(float)).max() > MOST_BYTES:
        raise FrameError("a piece out of bounds", _FOREIGN)
    size_bytes = int((rows * run).sum())
    most = CHUNK_BYTES if block_bytes else IN_PLACE_CHUNK_BYTES
    if size_bytes > most:
        raise FrameError(f"a request for {size_bytes} bytes", f"request at most {most} at once")
    if block_bytes:
        blocks = int(most_blocks(table[:, 1:], block_bytes).sum())
        if blocks > MAX_BLOCKS:
            raise FrameError(f"a request that touches {blocks} blocks", f"touch at most {MAX_BLOCKS}")


def status_bytes(blocks: int) -> int:
    """Bytes that a Status with this many block digests takes at most."""
    return 1024 + 9 * blocks


def status_of(error: EarlError) -> Status:
    """The Status that carries an error to the reader; messages are truncated to fit."""
    return Status(type(error).__name__, str(error)[:512], 0, ())


def raise_failure(status: Status, peer: str) -> None:
    """Raises the error that a Status carries, if any."""
    if status.error == RegionGone.__name__:
        raise RegionGone(status.message, "read a newer descriptor")
    if status.error:
        raise PeerLost(f"{peer} refused a read: {status.error}: {status.message}", "see the owner's log")


def request_tag(connection: int) -> int:
    return connection << 32


def payload_tag(connection: int, seq: int) -> int:
    return connection << 32 | seq << 1


def status_tag(connection: int, seq: int) -> int:
    return connection << 32 | seq << 1 | 1


def mac(key: bytes, *parts: bytes | memoryview) -> bytes:
    """Keyed digest of the parts, each with its length."""
    text = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
    return hmac.digest(key, text, "sha256")[:MAC_BYTES]


def hello_mac(
    secret: bytes, challenge: Challenge, nonce: bytes, ucx_address: bytes, connection: int
) -> bytes:
    return mac(secret, b"hello", challenge.nonce, nonce, ucx_address, connection.to_bytes(4, "little"))


def welcome_mac(secret: bytes, challenge: Challenge, nonce: bytes, offer: bytes, connection: int) -> bytes:
    return mac(secret, b"welcome", challenge.nonce, nonce, offer, connection.to_bytes(4, "little"))


def session_key(secret: bytes, challenge: Challenge, nonce: bytes) -> bytes:
    """Signs the requests of one connection, so that none can be replayed on another."""
    text = b"session" + challenge.nonce + nonce
    return hmac.digest(secret, text, "sha256")
