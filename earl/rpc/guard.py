"""The server's one interceptor: refuses callers without a right, turns errors into statuses.

It wraps a handler in one of the same shape (unary or stream on each side). A refused call is answered
before anything of it is read, whatever its shape: its caller cannot hold a place among the server's
calls by never sending a message.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from earl.errors import EarlError, MalformedRequest, PermissionDenied
from earl.obs import tracing
from earl.rpc import auth
from earl.rpc.audit import Audit
from earl.rpc.calls import Calls
from earl.rpc.errors import DETAILS_KEY, bounded, status_code, to_status
from earl.rpc.open_checks import METHOD as CHECK
from earl.rpc.open_checks import OpenChecks
from earl.rpc.roles import Rule, rules
from earl.rpc.streams import OpenStreams
from earl.rpc.tokens import AcceptedTokens, Bearer

log = logging.getLogger(__name__)

# Health's Watch and reflection: for every role.
COMMON_PREFIXES = ("/grpc.health.v1.Health/", "/grpc.reflection.")

# Around a call before its message is decoded, and around the call itself with its message.
Gate = Callable[[grpc.aio.ServicerContext], AbstractAsyncContextManager[None]]
Noted = Callable[[grpc.aio.ServicerContext, Any], AbstractAsyncContextManager[None]]
# For calls that need no gate or note: one shared object costs a call next to nothing.
_NOTHING = nullcontext()


@asynccontextmanager
async def translate_errors(method: str, context: grpc.aio.ServicerContext):
    """Ends the RPC with the status of whatever the body raises."""
    try:
        yield
    except EarlError as error:
        trailing = ((DETAILS_KEY, to_status(error).SerializeToString()),)
        await context.abort(status_code(error), bounded(str(error)), trailing)
    except grpc.aio.AbortError:
        raise
    except NotImplementedError as error:
        # A generated servicer's own method raises this; from other code it is an error like others.
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
    """Authenticates, audits, counts and translates for every RPC of a server.

    Health's Check is open to all (open_checks.py), its Watch and reflection to any accepted token, other
    methods to the roles that their contracts name (roles.py). audit: takes calls that their contract calls
    audited, and refused calls.
    """

    def __init__(self, tokens: AcceptedTokens, calls: Calls, audit: Audit | None = None) -> None:
        self._tokens = tokens
        self._calls = calls
        self._audit = audit
        self._rules: dict[str, Rule] = {}
        self._checks = OpenChecks(calls)
        self.streams = OpenStreams(tokens)

    def add(self, service: str) -> None:
        """Lets calls of a service through, by its full name. Raises ConfigError."""
        self._rules |= rules(service)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        method: str = handler_call_details.method  # type: ignore[attr-defined]
        if handler is None:
            return handler
        if method == CHECK:
            return self._checks.handler(handler)
        try:
            bearer = self._admit(method, handler_call_details.invocation_metadata or ())  # type: ignore[attr-defined]
        except EarlError as error:
            stream = handler.request_streaming or handler.response_streaming
            return grpc.stream_unary_rpc_method_handler(partial(self._refuse, method, error, stream))
        gate: Gate = _open
        if handler.request_streaming or handler.response_streaming:
            gate = partial(self._held, bearer)
        rule = self._rules.get(method)
        written = self._audit is not None and rule is not None and rule.audited
        noted: Noted = partial(self._noted, method, bearer) if written else _unnoted
        return _wrapped(handler, method, gate, noted, self._calls)

    def _admit(self, method: str, sent: Any) -> Bearer:
        """The bearer whose token came with a call. Raises Unauthenticated, PermissionDenied."""
        bearer = self._tokens.identify(auth.token_of(sent))
        if bearer.role is None or method.startswith(COMMON_PREFIXES):
            return bearer
        rule = self._rules.get(method)
        if rule is None or bearer.role not in rule.roles:
            able = " or ".join(sorted(rule.roles)) if rule else "nobody"
            raise PermissionDenied(
                f"{method} is for {able}, the token {bearer.id} is of role {bearer.role}",
                "call it with a token of that role",
            )
        return bearer

    async def _refuse(
        self, method: str, error: EarlError, stream: bool, _messages: Any, context: grpc.aio.ServicerContext
    ) -> None:
        with self._calls.counted(method, context, stream=stream):
            if self._audit is not None:
                self._audit.refused(method, context.peer(), error)
            async with translate_errors(method, context):
                raise error

    @asynccontextmanager
    async def _held(self, bearer: Bearer, context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        async with self.streams.held(bearer):
            yield

    @asynccontextmanager
    async def _noted(
        self, method: str, bearer: Bearer, context: grpc.aio.ServicerContext, request: Any
    ) -> AsyncIterator[None]:
        """The body is an audited call. request: its message, or a stream's iterator."""
        assert self._audit is not None
        note = partial(self._audit.called, method, bearer, context.peer(), request=request)
        streams = not isinstance(request, Message)
        if streams:
            note("opened")
        try:
            yield
        except BaseException as error:
            note(type(error).__name__)
            raise
        note("ended" if streams else "ok")


def _open(context: grpc.aio.ServicerContext) -> AbstractAsyncContextManager[None]:
    return _NOTHING


def _unnoted(context: grpc.aio.ServicerContext, request: Any) -> AbstractAsyncContextManager[None]:
    return _NOTHING


def _traced(method: str, context: grpc.aio.ServicerContext) -> AbstractContextManager[None]:
    """Records a unary call that is a part of the caller's traced work."""
    if not tracing.active():
        return _NOTHING
    for key, value in context.invocation_metadata() or ():
        if key == tracing.TRACEPARENT and isinstance(value, str) and (parent := tracing.checked(value)):
            return _recorded(method.strip("/"), parent)
    return _NOTHING


@contextmanager
def _recorded(name: str, parent: str) -> Iterator[None]:
    with tracing.span(name, parent) as traceparent, tracing.within(traceparent):
        yield


def _wrapped(handler: Any, method: str, gate: Gate, noted: Noted, calls: Calls) -> grpc.RpcMethodHandler:
    """The handler, counted and its errors translated: behind `gate` the message is decoded, and answered in
    `noted`."""
    shape = f"{'stream' if handler.request_streaming else 'unary'}_" + (
        "stream" if handler.response_streaming else "unary"
    )
    behaviour = getattr(handler, shape)
    decoder = handler.request_deserializer

    def decoded(request: Any) -> Any:
        """The message of a unary call; a stream's iterator as it is: its reader decodes."""
        if handler.request_streaming or decoder is None:
            return request
        try:
            return decoder(request)
        except DecodeError as error:
            raise MalformedRequest(f"{method}: {error}", "send a message of its contract") from error

    stream = shape != "unary_unary"

    async def unary(request: Any, context: grpc.aio.ServicerContext) -> Any:
        with calls.counted(method, context, stream=stream):
            async with translate_errors(method, context), gate(context):
                message = decoded(request)
                with _traced(method, context):
                    async with noted(context, message):
                        return await behaviour(message, context)

    async def generated(request: Any, context: grpc.aio.ServicerContext) -> Any:
        with calls.counted(method, context, stream=stream):
            async with translate_errors(method, context), gate(context):
                message = decoded(request)
                async with noted(context, message):
                    async for response in behaviour(message, context):
                        yield response

    wrapper = generated if inspect.isasyncgenfunction(behaviour) else unary
    make = getattr(grpc, f"{shape}_rpc_method_handler")
    return make(wrapper, decoder if handler.request_streaming else None, handler.response_serializer)
