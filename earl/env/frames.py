"""One end of a stream of the environment protocol: frames there and back, each with several `messages`.

The same on both sides, whoever connected: a client's call and a servicer's context read and write alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from earl.errors import EnvProtocolError
from earl.rpc.client import EOF
from earl.rpc.outbox import Outbox

# A frame of a few bytes a message could otherwise hold a loop for seconds.
MAX_MESSAGES = 4_096


class Frames:
    """end: a bidirectional call or a servicer's context. frame: makes what is written of `messages=`."""

    def __init__(self, end: Any, frame: Callable[..., Any]) -> None:
        self._end = end
        self._frame = frame

    async def read(self) -> Sequence[Any] | None:
        """The messages of the next frame; None once the peer has ended its side.

        Raises EnvProtocolError for what is no such frame, for example text that is not UTF-8;
        grpc.aio.AioRpcError at a caller whose call failed.
        """
        try:
            frame = await self._end.read()
        except DecodeError as error:
            raise _undecodable(str(error)) from error
        if frame is EOF:
            return None
        if frame is None:  # what a caller is given for bytes that its call could not decode
            raise _undecodable("malformed")
        if len(frame.messages) > MAX_MESSAGES:
            count = len(frame.messages)
            raise EnvProtocolError(f"frame of {count} messages", f"send at most {MAX_MESSAGES} in one")
        return frame.messages

    async def write(self, messages: Sequence[Any]) -> None:
        """Sends them in one frame."""
        await self._end.write(self._frame(messages=messages))

    async def send(self, outbox: Outbox) -> None:
        """Writes what is put into `outbox` until it is closed; raises the error given to its `close`.

        Returns also when the stream has ended: why it did is for its reader to learn and tell.
        """
        try:
            await outbox.drain_to(self.write)
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            outbox.close()


def _undecodable(reason: str) -> EnvProtocolError:
    return EnvProtocolError(
        f"a frame cannot be decoded: {reason}", "send protobuf of proto/earl/v1/env.proto, with text in UTF-8"
    )
