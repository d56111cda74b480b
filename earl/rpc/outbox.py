"""What waits to be written to a stream: put never blocks, and what is ready together goes together.

One task per stream drains it. While a write is in flight new messages gather, so a busy stream sends
few large frames and an idle one sends at once. The bound protects memory from a peer that reads too
slowly: past it the stream is closed with an error instead of growing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from earl.errors import EarlError, RpcError

# Bounds of one frame (a single message may be larger), and of a stream that its peer does not read.
FRAME_MESSAGES = 256
FRAME_BYTES = 4 << 20
LIMIT_MESSAGES = 100_000


class Outbox:
    """A bounded queue of protobuf messages with one reader."""

    def __init__(self, limit: int = LIMIT_MESSAGES) -> None:
        self._limit = limit
        self._messages: deque[Any] = deque()
        self._wake = asyncio.Event()
        self._closed = False
        self._error: EarlError | None = None

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, message: Any) -> None:
        """Queue `message`; after `close` it is dropped. Past the bound the outbox closes with RpcError."""
        if self._closed:
            return
        self._messages.append(message)
        if len(self._messages) > self._limit:
            self.close(RpcError(f"the peer left {self._limit} messages unread", "it is too slow or frozen"))
        self._wake.set()

    def close(self, error: EarlError | None = None) -> None:
        """End the stream: at once with `error`, otherwise after what is queued. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._error = error
        if error is not None:
            self._messages.clear()
        self._wake.set()

    async def drain_to(self, write: Callable[[list[Any]], Awaitable[Any]]) -> None:
        """Write until closed, in bounded frames; raises the error given to `close`."""
        messages = self._messages
        while True:
            if not messages:
                if self._closed:
                    break
                self._wake.clear()
                await self._wake.wait()
                continue
            await write(self._next_frame())
        if self._error is not None:
            raise self._error

    def _next_frame(self) -> list[Any]:
        messages, frame, size_bytes = self._messages, [], 0
        while messages and len(frame) < FRAME_MESSAGES:
            size_bytes += messages[0].ByteSize()
            if frame and size_bytes > FRAME_BYTES:
                break
            frame.append(messages.popleft())
        return frame

    async def drain_to_call(self, call: Any, frame: Callable[..., Any]) -> None:
        """`drain_to` a client's stream, as `frame(messages=...)`.

        Returns also when the call has ended: why it did is for the call's reader to learn and tell.
        """

        async def write(messages: list[Any]) -> None:
            await call.write(frame(messages=messages))

        try:
            await self.drain_to(write)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self.close()
