"""UCX as it is loaded here, and what its Python binding ucxx lacks: tag messages of many runs of memory.

In UCP they are messages of UCP_DATATYPE_IOV: a sender's runs leave from where they lie, a reader's arrive
where they belong, and nothing is gathered. The requests are polled as ucxx's are (`completed`,
`check_error`) and have no callback. ucxx makes workers with UCS_THREAD_MODE_MULTI, and an Endpoint submits
and progresses on its loop's thread alone, without progress thread or delayed submission: calls made there
are ordered with ucxx's own.

How UCP's structures lie is written down here, after ucp.h of UCX 1.21, and trusted for that version alone:
with another one `refusal` gives the reason, and what is in pieces is gathered before it is sent.
"""

from __future__ import annotations

import ctypes
import functools
import os

import numpy as np

from earl.dispatch.transport.ucx.runs import Runs
from earl.errors import TransportUnavailable

# Read when the libraries load: no chatter on stdout.
os.environ.setdefault("UCX_LOG_LEVEL", "error")
os.environ.setdefault("UCX_HANDLE_ERRORS", "none")

try:
    import ucxx  # noqa: F401  (loads libucxx and libucp)
    from ucxx._lib import libucxx as api  # private; ucxx is pinned exactly
    from ucxx._lib.arr import Array as Array
except ImportError as error:
    raise TransportUnavailable(
        f"UCX cannot be loaded: {error}", "install earl[ucx], or set data_plane.transport to shm"
    ) from error

# major, minor: the header of one 1.21 release holds for all of them.
KNOWN = (1, 21)
_FIELD_DATATYPE = 1 << 3
_DATATYPE_IOV = 2
# ucs_status_t is a packed enumeration: one byte, the rest of the register undefined.
_STATUS = ctypes.c_int8
_IN_PROGRESS = 1
# UCX sends at most 16 runs with one call, and takes in at the other end what came with one: shorter runs are
# copied into a buffer in less time than such calls take.
IN_PLACE_BYTES = 16 << 10
_FIELD_TRANSPORTS = 1 << 3
# An endpoint's transports that are asked for: it has no more lanes.
_MOST_TRANSPORTS = 16
# ucs_status_ptr_t: small negative numbers are errors, other values that are not 0 requests.
_ERRORS = 100


class RequestParam(ctypes.Structure):
    """ucp_request_param_t."""

    _fields_ = (
        ("op_attr_mask", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("request", ctypes.c_void_p),
        ("cb", ctypes.c_void_p),
        ("datatype", ctypes.c_uint64),
        ("user_data", ctypes.c_void_p),
        ("reply_buffer", ctypes.c_void_p),
        ("memory_type", ctypes.c_int),
        ("recv_info", ctypes.c_void_p),
        ("memh", ctypes.c_void_p),
    )


class TransportEntry(ctypes.Structure):
    """ucp_transport_entry_t."""

    _fields_ = (("transport_name", ctypes.c_char_p), ("device_name", ctypes.c_char_p))


class EndpointAttributes(ctypes.Structure):
    """ucp_ep_attr_t, with ucp_transports_t spelled out; it may grow at its end."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local_address", ctypes.c_uint64 * 16),
        ("remote_address", ctypes.c_uint64 * 16),
        ("entries", ctypes.POINTER(TransportEntry)),
        ("count", ctypes.c_uint),
        ("entry_bytes", ctypes.c_size_t),
        ("user_data", ctypes.c_void_p),
    )


class _Functions:
    """The libucp that ucxx has loaded: never a second one. Raises TransportUnavailable."""

    def __init__(self) -> None:
        size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
        param = ctypes.POINTER(RequestParam)
        try:
            ucp = ctypes.CDLL("libucp.so.0", os.RTLD_NOW | os.RTLD_NOLOAD)
            ucs = ctypes.CDLL("libucs.so.0", os.RTLD_NOW | os.RTLD_NOLOAD)
            self.version = _typed(ucp.ucp_get_version, None, *[ctypes.POINTER(ctypes.c_uint)] * 3)
            self.send = _typed(ucp.ucp_tag_send_nbx, pointer, pointer, pointer, size, number, param)
            self.receive = _typed(
                ucp.ucp_tag_recv_nbx, pointer, pointer, pointer, size, number, number, param
            )
            self.status = _typed(ucp.ucp_request_check_status, _STATUS, pointer)
            self.cancel = _typed(ucp.ucp_request_cancel, None, pointer, pointer)
            self.free = _typed(ucp.ucp_request_free, None, pointer)
            self.query = _typed(ucp.ucp_ep_query, _STATUS, pointer, ctypes.POINTER(EndpointAttributes))
            self.name_of = _typed(ucs.ucs_status_string, ctypes.c_char_p, _STATUS)
        except (OSError, AttributeError) as error:
            raise TransportUnavailable(
                f"what ucxx loaded as libucp cannot be called: {error}", "install earl[ucx]"
            ) from error


def _typed(function, result, *arguments):
    function.restype, function.argtypes = result, arguments
    return function


@functools.cache
def _functions() -> _Functions:
    return _Functions()


@functools.cache
def refusal() -> str:
    """The reason why messages of many runs cannot be sent or received here; "" where they can."""
    try:
        numbers = [ctypes.c_uint() for _ in range(3)]
        _functions().version(*map(ctypes.byref, numbers))
    except TransportUnavailable as error:
        return error.message
    version = [number.value for number in numbers]
    if tuple(version[:2]) != KNOWN:
        return f"UCX {'.'.join(map(str, version))} is not UCX {'.'.join(map(str, KNOWN))}"
    return ""


def transports(endpoint: int) -> tuple[str, ...]:
    """Names of the transports that an endpoint (ucp_ep_h) uses, sorted; none where UCX does not tell."""
    if refusal():
        return ()
    entries = (TransportEntry * _MOST_TRANSPORTS)()
    attributes = EndpointAttributes(
        field_mask=_FIELD_TRANSPORTS,
        entries=entries,
        count=_MOST_TRANSPORTS,
        entry_bytes=ctypes.sizeof(TransportEntry),
    )
    if _functions().query(endpoint, ctypes.byref(attributes)) < 0:
        return ()
    return tuple(sorted({entries[i].transport_name.decode() for i in range(attributes.count)}))


def through_buffer(rows: np.ndarray, run: np.ndarray) -> np.ndarray:
    """bool[P]: which pieces of a payload, int64[P] rows and run, go through a buffer rather than in place."""
    if len(run) == 1 and rows[0] == 1:
        return np.zeros(1, bool)
    return np.ones(len(run), bool) if refusal() else run < IN_PLACE_BYTES


class RunsRequest:
    """One message in flight. Its holder keeps its runs until `completed`, and polls until then."""

    def __init__(self, started: int | None, worker: int) -> None:
        """started: what UCP answered to the submission."""
        self._worker = worker
        self._request, self._status = 0, _IN_PROGRESS
        if not started:
            self._status = 0
        elif started >= (1 << 64) - _ERRORS:
            self._status = started - (1 << 64)
        else:
            self._request = started

    @property
    def completed(self) -> bool:
        if self._request:
            self._status = _functions().status(self._request)
            if self._status != _IN_PROGRESS:
                _functions().free(self._request)
                self._request = 0
        return self._status != _IN_PROGRESS

    def check_error(self) -> None:
        """Raises UCXError if it ended badly."""
        if self._status < 0:
            raise api.UCXError(_functions().name_of(self._status).decode())

    def cancel(self) -> None:
        """Ends a receive that nothing has arrived for; what has begun ends with its endpoint."""
        if not self.completed:
            _functions().cancel(self._worker, self._request)


_PARAM = RequestParam(op_attr_mask=_FIELD_DATATYPE, datatype=_DATATYPE_IOV)
_EVERY_BIT = (1 << 64) - 1


def send(endpoint: int, worker: int, runs: Runs, tag: int) -> RunsRequest:
    """endpoint, worker: handles (ucp_ep_h, ucp_worker_h)."""
    table = runs.table
    sent = _functions().send(endpoint, table.ctypes.data, len(table), tag, ctypes.byref(_PARAM))
    return RunsRequest(sent, worker)


def receive(worker: int, runs: Runs, tag: int) -> RunsRequest:
    """A message of just this tag, as long as the runs together."""
    table = runs.table
    start, count, param = table.ctypes.data, len(table), ctypes.byref(_PARAM)
    return RunsRequest(_functions().receive(worker, start, count, tag, _EVERY_BIT, param), worker)
