"""Offers one arena to NIXL readers; runs in the serving process, which then has nothing to do.

The arena is registered once. Its key and address go to whoever proves to hold the run's secret; over
RDMA the card answers reads, over TCP the agent's progress thread does, and sleeps while there are none.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import secrets

import msgspec
import numpy as np

from earl.dispatch.memory.arena import MappedArena
from earl.dispatch.transport import handshake, wire
from earl.dispatch.transport.base import settle
from earl.dispatch.transport.nixl.agent import Agent, wire_here
from earl.dispatch.transport.nixl.link import Offer
from earl.errors import PortInUse
from earl.loopback import is_loopback

log = logging.getLogger(__name__)

_HANDSHAKE_S = 5.0
# Enough of the arena's first page to know where its slot table lies.
_HEADER_BYTES = 64
_MAX_CONNECTIONS = 1024


class NixlServer:
    """Serves one mapped arena to whoever holds the run's secret."""

    def __init__(self, arena: MappedArena, secret: bytes) -> None:
        self._arena = arena
        self._secret = secret
        self._memory = arena.memory
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._numbers = iter(range(1, 1 << 32))

    async def start(self, host: str, port: int) -> str:
        """Listen; returns host:port. Raises PortInUse, TransportUnavailable."""
        wire_used = wire_here()
        if wire_used == "rdma":
            self._memory = _writable(self._arena.path)
        name = f"arena-{self._arena.nonce:016x}-{secrets.token_hex(8)}"
        self._agent = Agent(name, wire_used, loopback=is_loopback(host), progress=True)
        self._agent.register(self._memory)
        offer = Offer(
            wire_used,
            name,
            self._agent.metadata,
            self._memory.ctypes.data,
            self._memory.nbytes,
            self._memory[:_HEADER_BYTES].tobytes(),
        )
        self._offer = msgspec.msgpack.encode(offer)
        try:
            self._server = await asyncio.start_server(self._accept, host, port)
        except OSError as error:
            raise PortInUse(
                f"{host}:{port} cannot be bound: {error.strerror}", "set data_plane.bind"
            ) from error
        bound = self._server.sockets[0].getsockname()[1]
        return f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"

    async def close(self) -> None:
        """Close every connection; readers see PeerLost."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
            await settle(task)
        if self._server is not None:
            del self._agent

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        peer = "reader at {}:{}".format(*writer.get_extra_info("peername")[:2])
        try:
            if len(self._connections) <= _MAX_CONNECTIONS:
                async with asyncio.timeout(_HANDSHAKE_S):
                    hello, challenge = await handshake.hear(reader, writer, self._secret)
                    number = next(self._numbers)
                    await handshake.welcome(writer, self._secret, challenge, hello, self._offer, number)
                await reader.read(1)  # nothing more is said here: whatever ends it is the reader's end
        except (OSError, EOFError, TimeoutError):
            log.info("%s left", peer)
        except wire.FrameError as error:
            log.warning("%s refused: %s", peer, error.message)
        except asyncio.CancelledError:
            pass  # the server closes; asyncio would log it as a failure
        finally:
            writer.close()
            self._connections.discard(task)


def _writable(path: str) -> np.ndarray:
    """The arena's file mapped so that a network card accepts it: UCX registers memory for every access."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return np.frombuffer(mmap.mmap(fd, 0, flags=mmap.MAP_SHARED), np.uint8)
    finally:
        os.close(fd)
