"""Queues messages for a stream: put never blocks, and messages that are ready together are sent together.

One task per stream drains it. While a write is in flight new messages queue up, so a busy stream sends
few large frames and an idle one sends at once. The bounds protect memory from a peer that reads too
slowly: past them the stream is closed with an error instead of growing. Callers that can wait call
`wait_for_space`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from earl.errors import EarlError, RpcError

# Bounds of one frame (a single message may be larger), and of a stream that its peer does not read.
FRAME_MESSAGES = 256
FRAME_BYTES = 4 << 20
LIMIT_MESSAGES = 100_000
LIMIT_BYTES = 256 << 20
# The fraction of the bounds that may be queued before `wait_for_space` waits.
CROWDED_FRACTION = 1 / 8


class Outbox:
    """A bounded queue of protobuf messages with one reader."""

    def __init__(self, limit: int = LIMIT_MESSAGES, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        # Each with its size in bytes.
        self._messages: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._less = asyncio.Event()
        self._failed = asyncio.Event()
        self._closed = False
        self._error: EarlError | None = None

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, message: Any) -> None:
        """Queues `message`; after `close` it is dropped. Past a bound the outbox closes with RpcError."""
        if self._closed:
            return
        size_bytes = message.ByteSize()
        self._messages.append((message, size_bytes))
        self._bytes += size_bytes
        if len(self._messages) > self._limit or self._bytes > self._limit_bytes:
            text = f"the peer left {len(self._messages)} messages of {self._bytes} bytes unread"
            self.close(RpcError(text, "it is too slow or frozen"))
        self._wake.set()

    @property
    def crowded(self) -> bool:
        """Returns whether so much is queued that callers that can wait should."""
        return (
            len(self._messages) > self._limit * CROWDED_FRACTION
            or self._bytes > self._limit_bytes * CROWDED_FRACTION
        )

    async def wait_for_space(self) -> None:
        """Waits until the peer has read enough, or the outbox is closed."""
        while self.crowded and not self._closed:
            self._less.clear()
            await self._less.wait()

    def close(self, error: EarlError | None = None) -> None:
        """Ends the stream: at once with `error`, otherwise after what is queued. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._error = error
        if error is not None:
            self._messages.clear()
            self._bytes = 0
            self._failed.set()
        self._wake.set()
        self._less.set()

    async def failed(self) -> NoReturn:
        """Waits until closed with an error, and raises it; also while a write waits for a peer that does not
        read.
        """
        await self._failed.wait()
        assert self._error is not None
        raise self._error

    async def drain_to(self, write: Callable[[list[Any]], Awaitable[Any]]) -> None:
        """Writes until closed, in bounded frames; raises the error given to `close`."""
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
            message, message_bytes = messages[0]
            if frame and size_bytes + message_bytes > FRAME_BYTES:
                break
            messages.popleft()
            size_bytes += message_bytes
            frame.append(message)
        self._bytes -= size_bytes
        self._less.set()
        return frame
