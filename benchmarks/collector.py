"""The process that receives a run's metrics and traces; a benchmark sends it commands as JSON lines.

{"directory": "runs/x", "scrape": true}   ─►  {"address": "http://127.0.0.1:4317"}
{}                                        ─►  {"scrapes": 12, "trace_bytes": 34567}
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc

from benchmarks.every import every
from earl.stack.endpoints import endpoints_of

SCRAPE_S = 5.0


@contextmanager
def collector() -> Iterator[tuple[str, list[int]]]:
    """An OTLP collector's Export, which keeps nothing: its address, and the sizes of what came."""
    received: list[int] = []

    def export(request: bytes, context: grpc.ServicerContext) -> bytes:
        received.append(len(request))
        return b""

    name = "opentelemetry.proto.collector.trace.v1.TraceService"
    handler = grpc.method_handlers_generic_handler(
        name, {"Export": grpc.unary_unary_rpc_method_handler(export)}
    )
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", received
    finally:
        server.stop(None).wait(5.0)


@contextmanager
def scraped(directory: Path) -> Iterator[list[int]]:
    """Scrapes what endpoints.json names, as a Prometheus would, until the block ends; 1 for each answer."""
    answers: list[int] = []

    def scrape() -> None:
        for address in endpoints_of(directory).values():
            try:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=SCRAPE_S) as answer:
                    answers.append(1 if answer.read() else 0)
            except OSError:
                continue  # a process that is ending

    with every(SCRAPE_S, scrape):
        yield answers


def main() -> None:
    request = json.loads(sys.stdin.readline())
    with ExitStack() as stack:
        address, received = stack.enter_context(collector())
        directory = Path(request["directory"])
        scrapes = stack.enter_context(scraped(directory)) if request["scrape"] else []
        print(json.dumps({"address": address}), flush=True)
        for _ in sys.stdin:
            print(json.dumps({"scrapes": sum(scrapes), "trace_bytes": sum(received)}), flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # the benchmark ends it
        main()
