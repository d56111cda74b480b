"""Accepts readers' connections to one arena, whichever wire it is served over: one task each."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from earl.dispatch.transport import wire
from earl.dispatch.transport.base import settle
from earl.errors import PeerLost, PortInUse

log = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
_MAX_CONNECTIONS = 1024
# A reader's host that cannot be reached any more is noticed within a minute, though nothing is sent to it.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}

# Serves one reader until it leaves; the text names it in logs.
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]


class Listener:
    """Runs `serve` for each reader that connects; its errors end that reader's connection alone."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> str:
        """Listen; returns host:port. Raises PortInUse."""
        try:
            self._server = await asyncio.start_server(self._accept, host, port)
        except OSError as error:
            raise PortInUse(
                f"{host}:{port} cannot be bound: {error.strerror}", "set data_plane.bind"
            ) from error
        bound = self._server.sockets[0].getsockname()[1]
        return f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"

    async def close(self) -> None:
        """Closes every connection; readers see PeerLost."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
            await settle(task)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        peer = "reader at {}:{}".format(*writer.get_extra_info("peername")[:2])
        accepted = writer.get_extra_info("socket")
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            accepted.setsockopt(socket.IPPROTO_TCP, option, value)
        try:
            if len(self._connections) <= _MAX_CONNECTIONS:
                await self._serve(reader, writer, peer)
        except (PeerLost, OSError, EOFError, TimeoutError):
            log.info("%s left", peer)
        except wire.FrameError as error:
            log.warning("%s refused: %s", peer, error.message)
        except asyncio.CancelledError:
            pass  # the server closes; asyncio would log it as a failure
        finally:
            writer.close()
            self._connections.discard(task)
