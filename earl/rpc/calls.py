"""Counts a server's calls: by method and code, their durations, those in progress."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from earl.obs.catalogue import Sample
from earl.obs.histogram import Histogram

_BY_NUMBER = {code.value[0]: code.name for code in grpc.StatusCode}


class Calls:
    """Counts since the server was made. Streams count at their end, and only unary calls have durations."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, Histogram] = {}
        self.in_flight = 0

    @contextmanager
    def counted(
        self, method: str, context: grpc.aio.ServicerContext, *, stream: bool = False
    ) -> Iterator[None]:
        """Surrounds a call and counts it, with the code that its context has when it ends."""
        self.in_flight += 1
        began = time.perf_counter()
        cancelled = False
        try:
            yield
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            self.in_flight -= 1
            self.ended[method, "CANCELLED" if cancelled else _name_of(context.code())] += 1
            if not stream:
                histogram = self.seconds.get(method)
                if histogram is None:
                    histogram = self.seconds[method] = Histogram()
                histogram.add(time.perf_counter() - began)

    def samples(self) -> Iterator[Sample]:
        """The samples for GET /metrics."""
        yield Sample("earl_rpc_requests_in_flight", float(self.in_flight))
        for (method, code), count in self.ended.items():
            yield Sample("earl_rpc_requests_total", float(count), {"method": method.strip("/"), "code": code})
        for method, histogram in self.seconds.items():
            yield Sample("earl_rpc_request_seconds", histogram, {"method": method.strip("/")})


def _name_of(code: grpc.StatusCode | int | None) -> str:
    """grpc.aio keeps a number, and none for a call that ended well."""
    if isinstance(code, grpc.StatusCode):
        return code.name
    return _BY_NUMBER.get(code or 0, "UNKNOWN")
