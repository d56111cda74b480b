"""Errors across the wire: an `EarlError` raised in a servicer is raised again, as the same class, at
the caller.

It travels as a google.rpc.Status in the trailing metadata, with one ErrorInfo: reason = class name,
domain = "earl", metadata = message and remedy. What is no `EarlError` becomes INTERNAL and is logged
where it happened; its text does not leave the process.
"""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from earl import errors
from earl.errors import EarlError

DOMAIN = "earl"
DETAILS_KEY = "grpc-status-details-bin"
# grpc.aio's error, on this side, for a write into a stream whose connection just broke; on the other side
# for a call beyond the server's limit, and for one that arrived while the server stopped and was never
# executed. (A call that this process cancels ends with asyncio.CancelledError.)
_BROKEN_WRITE = (grpc.StatusCode.INTERNAL, "Internal error from Core")
_NO_PLACE = (grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
_SERVER_STOPS = (grpc.StatusCode.CANCELLED, "CANCELLED")
# Parts of gRPC's texts about connections, and what they mean.
_REASONS = {
    "Connection refused": "nothing listens there",
    "DNS resolution failed": "its host name is not known",
    "errors resolving": "its host name is not known",
    "Connection timed out": "its host does not answer",
    "No route to host": "there is no route to its host",
    "Network is unreachable": "the network is unreachable",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not of an authority that is trusted here",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "Socket closed": "the connection was closed",
    "Connection reset": "the connection was closed",
}
# Trailing metadata is bounded by the peer (8 KiB by default); a message is never that long.
MAX_TEXT_BYTES = 1024

_BY_CODE: dict[grpc.StatusCode, type[EarlError]] = {
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
    grpc.StatusCode.UNAVAILABLE: errors.ServiceUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
}
_REMEDIES: dict[type[EarlError], str] = {
    errors.Unauthenticated: "set EARL_TOKEN to a token that the service accepts",
    errors.PermissionDenied: "call it with a token of another role",
    errors.ServiceUnavailable: "check that the service runs and listens there",
    errors.DeadlineExceeded: "see whether the service is overloaded, or give it longer",
}


def catalogue() -> dict[str, type[EarlError]]:
    """All error classes by name, a base before what is derived from it, in other modules too."""
    by_name: dict[str, type[EarlError]] = {}
    pending: list[type[EarlError]] = [EarlError]
    while pending:
        kind = pending.pop(0)
        by_name.setdefault(kind.__name__, kind)
        pending += kind.__subclasses__()
    return by_name


def bounded(text: str, limit_bytes: int = MAX_TEXT_BYTES) -> str:
    """`text` on one line, truncated to `limit_bytes` of UTF-8."""
    line = " ".join(text.split())
    raw = line.encode("utf-8", "replace")
    return line if len(raw) <= limit_bytes else raw[: limit_bytes - 3].decode("utf-8", "ignore") + "..."


def status_code(error: EarlError) -> grpc.StatusCode:
    """The gRPC code that the class is sent as."""
    return grpc.StatusCode[error.status]


def to_status(error: EarlError) -> status_pb2.Status:
    """Converts `error` to a google.rpc.Status."""
    info = error_details_pb2.ErrorInfo(
        reason=type(error).__name__,
        domain=DOMAIN,
        metadata={"message": bounded(error.message), "remedy": bounded(error.remedy)},
    )
    detail = any_pb2.Any()
    detail.Pack(info)
    code: int = status_code(error).value[0]
    return status_pb2.Status(code=code, message=bounded(str(error)), details=[detail])


def from_status(status: status_pb2.Status) -> EarlError | None:
    """Converts `status` to the error that it carries; None if EARL did not send it.

    A class that this process does not know becomes `RpcError` with the class's name in its message.
    """
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if not detail.Unpack(info) or info.domain != DOMAIN:
            continue
        message, remedy = info.metadata.get("message", status.message), info.metadata.get("remedy", "")
        cls = catalogue().get(info.reason)
        return cls(message, remedy) if cls else errors.RpcError(f"{info.reason}: {message}", remedy)
    return None


def sent_by_service(error: grpc.aio.AioRpcError) -> EarlError | None:
    """The error that a servicer raised; None if gRPC itself failed the call."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            return from_status(status_pb2.Status.FromString(value))
    return None


def code_of(error: grpc.aio.AioRpcError) -> grpc.StatusCode:
    """The code of a failed call: UNAVAILABLE also for other codes of gRPC where a retry may succeed."""
    passing = (error.code(), error.details()) in (_BROKEN_WRITE, _NO_PLACE, _SERVER_STOPS)
    return grpc.StatusCode.UNAVAILABLE if passing else error.code()


def from_call(error: grpc.aio.AioRpcError, called: str) -> EarlError:
    """The typed error for a failed call; `called` names method and address for the message."""
    sent = sent_by_service(error)
    if sent is not None:
        return sent
    code = code_of(error)
    cls = _BY_CODE.get(code, errors.RpcError)
    return cls(bounded(f"{called} failed: {reason_of(error)}"), _REMEDIES.get(cls, ""))


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Returns why gRPC failed a call, in words; its own text where there are none for it here."""
    details = error.details() or ""
    if (error.code(), details) == _SERVER_STOPS:
        return "the service is stopping"
    for part, words in _REASONS.items():
        if part in details:
            return words
    return f"{code_of(error).name}: {details or 'no details'}"
