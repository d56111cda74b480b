"""Health's `Check`, the one method that everybody may call: bounded, so that it takes no other call's place.

gRPC gives a unary call its place among a server's calls before the message has come, for as long as the
caller likes. So this one is served as a stream of which one message is read, within MESSAGE_S. Where
AT_ONCE wait for theirs, the one that has waited longest is ended: a well-behaved caller sends its message
with the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from earl.rpc.calls import Calls

METHOD = "/grpc.health.v1.Health/Check"
MESSAGE_S = 1.0
AT_ONCE = 256


class OpenChecks:
    """The health checks of one server that are in progress."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        # The longest-waiting first.
        self._waiting: dict[asyncio.Timeout, None] = {}

    def handler(self, served: Any) -> grpc.RpcMethodHandler:
        """A handler with the answers of `served`, the health service's handler of `Check`."""

        async def answer(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> Any:
            with self._calls.counted(METHOD, context):
                scope = asyncio.timeout(MESSAGE_S)
                try:
                    async with scope:
                        self._wait(scope)
                        request = served.request_deserializer(await anext(messages))
                except TimeoutError:
                    await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "its message did not come in time")
                except (StopAsyncIteration, DecodeError):
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "it takes one HealthCheckRequest")
                finally:
                    self._waiting.pop(scope, None)
                return await served.unary_unary(request, context)

        return grpc.stream_unary_rpc_method_handler(answer, None, served.response_serializer)

    def _wait(self, scope: asyncio.Timeout) -> None:
        if len(self._waiting) >= AT_ONCE:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())
        self._waiting[scope] = None
