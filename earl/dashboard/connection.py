"""Connections to the page, limited in number: an idle one is closed for a new one."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class IdleClosingConnection(H11Protocol):
    """HTTP/1.1. From `limit_concurrency` connections on, the oldest on which nothing is being answered is
    closed for a new one; uvicorn, which closes none without a request, would refuse the new one.

    An idle connection has sent no request, or part of one, or is kept alive for the next.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.made_s = self.loop.time()
        # What was closed is among them until the loop comes to it.
        others = [connection for connection in self.connections if not connection.transport.is_closing()]
        if self.limit_concurrency is None or len(others) < self.limit_concurrency:
            return
        idle = [
            connection
            for connection in others
            if isinstance(connection, IdleClosingConnection) and connection is not self and connection.is_idle
        ]
        if idle:
            min(idle, key=lambda connection: connection.made_s).transport.abort()

    @property
    def is_idle(self) -> bool:
        answered = self.cycle is None or self.cycle.response_complete
        return answered and self.transport.get_write_buffer_size() == 0
