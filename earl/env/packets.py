"""Messages over a byte stream between a host and a process of its own: 4 bytes of length, then the bytes."""

from __future__ import annotations

import asyncio
import struct

from earl.errors import EnvProtocolError

MAX_BYTES = 32 << 20
_LENGTH = struct.Struct(">I")


def packed(payload: bytes) -> bytes:
    """The packet of one message. Raises EnvProtocolError if it is larger than MAX_BYTES."""
    return _LENGTH.pack(_bounded(len(payload))) + payload


async def read_packet(reader: asyncio.StreamReader) -> bytes | None:
    """The next message; None once the peer has closed or died, also in the middle of one.

    Raises EnvProtocolError for a length that no packet has.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(_bounded(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _bounded(length: int) -> int:
    if length > MAX_BYTES:
        raise EnvProtocolError(f"message of {length} bytes is larger than {MAX_BYTES}")
    return length
