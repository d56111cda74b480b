"""Offers one arena to NIXL readers; runs in the serving process, which takes no part in the reads.

The arena is registered once. Its key and address go to those who prove that they hold the run's secret; over
RDMA the card answers reads, over TCP the agent's progress thread does, and sleeps while there are none.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import secrets

import msgspec
import numpy as np

from earl.dispatch.memory.arena import MappedArena
from earl.dispatch.serve.listener import HANDSHAKE_S, Listener
from earl.dispatch.transport import handshake
from earl.dispatch.transport.nixl.agent import NixlAgent, wire_here
from earl.dispatch.transport.nixl.link import NixlOffer
from earl.loopback import is_loopback

# Enough of the arena's first page to find its slot table.
_HEADER_BYTES = 64


class NixlServer:
    """Serves one mapped arena to all holders of the run's secret."""

    def __init__(self, arena: MappedArena, secret: bytes) -> None:
        self._arena = arena
        self._secret = secret
        self._memory = arena.memory
        self._agent: NixlAgent | None = None
        self._offer = b""
        self._listener = Listener(self._serve)
        self._numbers = iter(range(1, 1 << 32))

    async def start(self, host: str, port: int) -> str:
        """Listen; returns host:port. Raises PortInUse, TransportUnavailable."""
        wire_used = wire_here()
        if wire_used == "rdma":
            self._memory = _writable(self._arena.path)
        name = f"arena-{self._arena.nonce:016x}-{secrets.token_hex(8)}"
        agent = self._agent = NixlAgent(name, wire_used, loopback=is_loopback(host), progress=True)
        agent.register(self._memory)
        offer = NixlOffer(
            wire_used,
            name,
            agent.metadata,
            self._memory.ctypes.data,
            self._memory.nbytes,
            self._memory[:_HEADER_BYTES].tobytes(),
        )
        self._offer = msgspec.msgpack.encode(offer)
        return await self._listener.start(host, port)

    async def close(self) -> None:
        """Closes every connection; readers see PeerLost."""
        await self._listener.close()
        self._agent = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        async with asyncio.timeout(HANDSHAKE_S):
            hello, challenge = await handshake.receive_hello(reader, writer, self._secret)
            number = next(self._numbers)
            await handshake.welcome(writer, self._secret, challenge, hello, self._offer, number)
        await handshake.answer_beats(reader, writer)


def _writable(path: str) -> np.ndarray:
    """The arena's file mapped so that a network card accepts it: UCX registers memory for every access."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return np.frombuffer(mmap.mmap(fd, 0, flags=mmap.MAP_SHARED), np.uint8)
    finally:
        os.close(fd)
