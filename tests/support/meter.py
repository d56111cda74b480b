"""A TCP relay that counts what passes: the bytes of a control plane as they are on the wire."""

from __future__ import annotations

import asyncio
import contextlib


class Meter:
    """async with Meter("host:port") as meter: connect to meter.address, read meter.size_bytes.

    size_bytes: of both directions since the start.
    """

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._tasks: set[asyncio.Task] = set()
        self.size_bytes = 0
        self.address = ""

    async def __aenter__(self) -> Meter:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.create_task(self._relay(reader, writer)))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            there, back = await asyncio.open_connection(self._host, self._port)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.size_bytes += len(data)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
