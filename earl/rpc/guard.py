"""The server's one interceptor: refuses callers without the token, turns errors into statuses.

It wraps a handler in one of the same shape (unary or stream on each side), so that a refused stream
ends at once instead of waiting for a first message.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from earl.errors import EarlError
from earl.rpc import auth
from earl.rpc.errors import DETAILS_KEY, bounded, status_code, to_status

log = logging.getLogger(__name__)


@asynccontextmanager
async def translated(method: str, context: grpc.aio.ServicerContext):
    """Ends the RPC with the status of whatever the body raises."""
    try:
        yield
    except EarlError as error:
        trailing = ((DETAILS_KEY, to_status(error).SerializeToString()),)
        await context.abort(status_code(error), bounded(str(error)), trailing)
    except grpc.aio.AbortError:
        raise
    except NotImplementedError as error:
        # A generated servicer's own method says so; anybody else's is an error like others.
        unserved = context.code() is grpc.StatusCode.UNIMPLEMENTED
        if not unserved:
            log.exception("unexpected error in %s", method)
        code = grpc.StatusCode.UNIMPLEMENTED if unserved else grpc.StatusCode.INTERNAL
        await context.abort(code, f"{method} is not served here" if unserved else _unexpected(error, method))
    except Exception as error:
        log.exception("unexpected error in %s", method)
        await context.abort(grpc.StatusCode.INTERNAL, _unexpected(error, method))


def _unexpected(error: Exception, method: str) -> str:
    return f"unexpected {type(error).__name__} in {method}; see the service's log"


class Guard(grpc.aio.ServerInterceptor):
    """Authenticates and translates for every RPC of a server."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        method: str = handler_call_details.method  # type: ignore[attr-defined]
        if handler is None:
            return handler
        refusal: EarlError | None = None
        try:
            auth.check_token(method, handler_call_details.invocation_metadata or (), self._token)  # type: ignore[attr-defined]
        except EarlError as error:
            refusal = error
        if refusal is None and method.startswith("/grpc."):
            return handler
        return _wrapped(handler, method, refusal)


def _wrapped(handler: Any, method: str, refusal: EarlError | None) -> grpc.RpcMethodHandler:
    shape = f"{'stream' if handler.request_streaming else 'unary'}_" + (
        "stream" if handler.response_streaming else "unary"
    )
    behaviour = getattr(handler, shape)

    async def unary(request: Any, context: grpc.aio.ServicerContext) -> Any:
        async with translated(method, context):
            if refusal:
                raise refusal
            return await behaviour(request, context)

    async def generated(request: Any, context: grpc.aio.ServicerContext) -> Any:
        async with translated(method, context):
            if refusal:
                raise refusal
            async for response in behaviour(request, context):
                yield response

    wrapper = generated if inspect.isasyncgenfunction(behaviour) else unary
    make = getattr(grpc, f"{shape}_rpc_method_handler")
    return make(wrapper, handler.request_deserializer, handler.response_serializer)
