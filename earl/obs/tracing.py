"""Traces that follow one ticket through every service: what a span is, who records it, where it goes.

    scheduler: ticket ──► pending ► leased ► ready ► planned                (traceparent: with the ticket)
                  └► rollout: episode ──► open ► generate ► step ...        (with Open, to the gateway)
                                └► gateway: queue ► reset ► step            (with Reset, to the host)
                                      └► host: reset ► step
                  └► reference: logprobs   └► trainer: read, train          (by the ticket's id)

A trace is a ticket's: its id, and whether it is sampled at all, follow from run, seed and ticket, so that
every service that knows the ticket knows the same, and no service keeps state for one that is not sampled.
Messages carry a W3C traceparent ("00-<trace>-<span>-01"), "" for what is not sampled, and for
that every function here returns at once.

Spans are recorded when they have ended, with the times that the service measured, and leave in the background
(OpenTelemetry's SDK, OTLP over gRPC): bounded, dropped when the collector is slow, never waited for.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from earl.errors import ConfigError

log = logging.getLogger(__name__)

# The name of the header, and of metadata of unary calls.
TRACEPARENT = "traceparent"
# How long the last export may delay a process's end, and how long any export may take.
CLOSE_S = 3.0
EXPORT_S = 3.0
# An export costs a process and the collector milliseconds each, however few spans are in it. One that waits
# with many goes earlier.
EXPORT_EVERY_S = 5.0
EXPORTED_SPANS = 512
# Spans that may wait for export; more are lost.
WAITING_SPANS = 2048

Attribute = str | int | float | bool

_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01")

# The traceparent of the work that this task does; what it calls is a part of it.
_current: ContextVar[str] = ContextVar("traceparent", default="")


def checked(text: str) -> str:
    """A traceparent as it came over the wire, or "" if it is none that is sampled."""
    return text if _FORM.fullmatch(text) else ""


@dataclass(frozen=True, slots=True)
class TracedTickets:
    """The tickets of a run that are traced, and their ids. fraction: of all of them, 0 to 1."""

    run: str
    seed: int
    fraction: float

    def parent(self, ticket_id: int) -> str:
        """The traceparent of a ticket, whose own span is the trace's root; "" if it is not sampled."""
        if self.fraction <= 0.0:
            return ""
        return self._of(f"ticket/{ticket_id}", self.fraction)

    def switch(self, stage: str, epoch: int) -> str:
        """The traceparent of a switch: all are sampled, if anything is."""
        return self._of(f"switch/{stage}/{epoch}", 1.0) if self.fraction > 0.0 else ""

    def _of(self, what: str, fraction: float) -> str:
        digest = hashlib.blake2b(f"{self.run}/{self.seed}/{what}".encode(), digest_size=24).digest()
        # The trace's lower 64 bits decide, as OpenTelemetry's own ratio sampler has it; few tickets pass.
        if int.from_bytes(digest[8:16]) >= round(fraction * (1 << 64)):
            return ""
        trace, span = int.from_bytes(digest[:16]), int.from_bytes(digest[16:])
        return f"00-{trace or 1:032x}-{span or 1:016x}-01"


def child(parent: str) -> str:
    """The traceparent of a new span below `parent`; "" for ""."""
    if not parent or _exporter is None:
        return ""
    return f"{parent[:36]}{secrets.randbits(64) or 1:016x}-01"


def active() -> bool:
    """Returns whether this process sends spans anywhere."""
    return _exporter is not None


def current() -> str:
    """The traceparent of the work that this task does; "" if it is not traced."""
    return _current.get()


@contextmanager
def within(traceparent: str) -> Iterator[None]:
    """Makes the block a part of this span: calls inside carry its traceparent."""
    token = _current.set(traceparent)
    try:
        yield
    finally:
        _current.reset(token)


def record(
    name: str,
    parent: str,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, Attribute] | None = None,
    *,
    traceparent: str = "",
    root: bool = False,
) -> None:
    """Records a span that has ended. Times: Unix nanoseconds. traceparent: its own, if it has child spans.

    root: it has no parent, and is `parent` itself. attributes: numbers and short texts, never texts of
    agents or environments; they are sent as earl.<name>.
    """
    exporter = _exporter  # another thread may end it
    if parent and exporter is not None:
        exporter.record(name, parent, start_ns, end_ns, attributes or {}, traceparent, root)


@contextmanager
def span(name: str, parent: str, attributes: Mapping[str, Attribute] | None = None) -> Iterator[str]:
    """Records the block as a span; gives its traceparent, "" if it is not traced."""
    if not parent or _exporter is None:
        yield ""
        return
    traceparent, start_ns = child(parent), time.time_ns()
    try:
        yield traceparent
    finally:
        record(name, parent, start_ns, time.time_ns(), attributes, traceparent=traceparent)


@contextmanager
def exporting(endpoint: str, process: str, run: str) -> Iterator[None]:
    """Inside, this process's spans go to an OTLP collector ("http://host:4317"); "": they are not recorded.

    Raises ConfigError without the extra `otel`.
    """
    global _exporter
    if not endpoint:
        yield
        return
    _exporter = _Exporter(endpoint, process, run)
    try:
        yield
    finally:
        exporter, _exporter = _exporter, None
        exporter.close()


class _Exporter:
    """Makes and exports OpenTelemetry's spans after they have ended, with given ids and times: no tracer is
    involved.
    """

    def __init__(self, endpoint: str, process: str, run: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import ReadableSpan
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
            from opentelemetry.trace import SpanContext, TraceFlags
        except ImportError as error:
            raise ConfigError(
                f"obs.traces = {endpoint!r} needs OpenTelemetry: {error}", "pip install 'earl[otel]'"
            ) from error

        self._span, self._context = ReadableSpan, SpanContext
        self._sampled = TraceFlags(TraceFlags.SAMPLED)
        self._scope = InstrumentationScope("earl")
        service = re.sub(r"-\d+$", "", process)
        self._resource = Resource.create(
            {"service.name": f"earl-{service}", "service.instance.id": process, "earl.run": run}
        )
        exporter = OTLPSpanExporter(
            endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=EXPORT_S
        )
        self._processor = BatchSpanProcessor(
            exporter,
            max_queue_size=WAITING_SPANS,
            schedule_delay_millis=EXPORT_EVERY_S * 1e3,
            max_export_batch_size=EXPORTED_SPANS,
        )

    def record(
        self,
        name: str,
        parent: str,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Attribute],
        traceparent: str,
        root: bool,
    ) -> None:
        trace_id, parent_id = int(parent[3:35], 16), int(parent[36:52], 16)
        recorded = parent if root else traceparent
        span_id = int(recorded[36:52], 16) if recorded else secrets.randbits(64) or 1
        self._processor.on_end(
            self._span(
                name,
                self._context(trace_id, span_id, False, self._sampled),
                None if root else self._context(trace_id, parent_id, True, self._sampled),
                resource=self._resource,
                attributes={f"earl.{key}": value for key, value in attributes.items()},
                instrumentation_scope=self._scope,
                start_time=start_ns,
                end_time=max(start_ns, end_ns),
            )
        )

    def close(self) -> None:
        """Sends what is left, if the collector takes it within CLOSE_S."""
        closing = threading.Thread(target=self._processor.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            log.warning("spans were not taken within %g s: they are lost", CLOSE_S)


_exporter: _Exporter | None = None
