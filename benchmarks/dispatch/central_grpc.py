"""The best single controller over gRPC that could be written, once with grpc's threads and once with asyncio.

    producer ─ 1 MiB of half rows ─► Put ─► a queue ─► Get ─ the same message ─► consumer

A stream for each pair of producer and reader. Pipelined: a message leaves for its consumer while its
producer still sends. The controller copies nothing: the producers split rows into halves as they make
messages of them, which costs no more than making messages of whole rows.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from benchmarks.dispatch.arm import Arm
from benchmarks.dispatch.member import WAIT_S, Done, Member, Round
from benchmarks.dispatch.pattern import PRODUCERS, half, readers, sources

SERVICE = "bench.Rows"
CHUNK_BYTES = 1 << 20
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.optimization_target", "throughput"),
    ("grpc.so_reuseport", 0),
]
_THREADS = 16


def messages(rows: np.ndarray) -> Iterator[bytes]:
    """Rows, strided or not, in messages of CHUNK_BYTES: what gRPC carries fastest."""
    step = max(1, CHUNK_BYTES // (rows.shape[1] * rows.itemsize))
    for first in range(0, len(rows), step):
        yield rows[first : first + step].tobytes()


def stream(producer: int, consumer: int) -> tuple[tuple[str, str]]:
    """The call metadata that names the producer and the consumer of a stream."""
    return (("stream", f"{producer} {consumer}"),)


def stream_of(context: Any) -> tuple[int, int]:
    """(producer, consumer) of a call."""
    producer, consumer = dict(context.invocation_metadata())["stream"].split()
    return int(producer), int(consumer)


class Filling:
    """Writes messages into a contiguous target, one after another."""

    def __init__(self, target: np.ndarray) -> None:
        self._flat = target.reshape(-1).view(np.uint8)
        self.size_bytes = 0

    def add(self, message: bytes) -> None:
        stop = self.size_bytes + len(message)
        self._flat[self.size_bytes : stop] = np.frombuffer(message, np.uint8)
        self.size_bytes = stop


class CentralGrpc(Arm):
    """The part that both variants share: method names and the queue of each stream.

    queue: makes a queue of messages to forward.
    """

    queue: Callable[[], Any]

    def __init__(self) -> None:
        self._passed: asyncio.Queue[None] = asyncio.Queue()
        self._threads = ThreadPoolExecutor(_THREADS, "bench-grpc")
        self._server: Any = None
        self._channel: Any = None
        self._queues: dict[tuple[int, int], Any] = {}
        self._received_bytes = 0

    def _handlers(self, put: Callable, get: Callable) -> tuple[grpc.GenericRpcHandler]:
        handlers = {
            "Put": grpc.stream_unary_rpc_method_handler(put),
            "Get": grpc.unary_stream_rpc_method_handler(get),
        }
        return (grpc.method_handlers_generic_handler(SERVICE, handlers),)

    async def prepare(self, me: Member, round_: Round) -> None:
        if me.role == "controller":
            self._queues = {(p, c): self.queue() for p in range(PRODUCERS) for c in readers(p)}
            self._received_bytes = 0

    async def control(self, me: Member, round_: Round) -> Done:
        """Waits until the server's handlers have forwarded every stream."""
        for _ in range(len(self._queues)):
            await asyncio.wait_for(self._passed.get(), WAIT_S)
        return Done(self._received_bytes)


class CentralGrpcThreads(CentralGrpc):
    """grpc's server of threads; a consumer has a thread for each of its two streams."""

    queue = queue.SimpleQueue

    async def open_controller(self, me: Member) -> str:
        self._loop = asyncio.get_running_loop()
        self._server = grpc.server(self._threads, options=OPTIONS)
        self._server.add_generic_rpc_handlers(self._handlers(self._put, self._get))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        return f"127.0.0.1:{port}"

    async def open_producer(self, me: Member) -> None:
        self._channel = grpc.insecure_channel(me.known["controller"], options=OPTIONS)
        grpc.channel_ready_future(self._channel).result(WAIT_S)

    open_consumer = open_producer

    async def produce(self, me: Member, round_: Round) -> Done:
        put = self._channel.stream_unary(f"/{SERVICE}/Put")
        calls = [
            put.future(
                messages(me.array[:, half(consumer)]), timeout=WAIT_S, metadata=stream(me.rank, consumer)
            )
            for consumer in readers(me.rank)
        ]
        for call in calls:
            call.result()
        return Done()

    async def consume(self, me: Member, round_: Round) -> Done:
        began_ns = time.monotonic_ns()
        get = self._channel.unary_stream(f"/{SERVICE}/Get")

        def fill(producer: int) -> int:
            filling = Filling(me.array[round_.pattern.part(me.rank, producer)])
            for message in get(b"", timeout=WAIT_S, metadata=stream(producer, me.rank)):
                filling.add(message)
            return filling.size_bytes

        loop = asyncio.get_running_loop()
        filled = [loop.run_in_executor(self._threads, fill, producer) for producer in sources(me.rank)]
        return Done(sum(await asyncio.gather(*filled)), time.monotonic_ns() - began_ns)

    async def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._server is not None:
            self._server.stop(None).wait(WAIT_S)
        self._threads.shutdown()

    def _put(self, chunks: Iterator[bytes], context: Any) -> bytes:
        forwarding, received = self._queues[stream_of(context)], 0
        for chunk in chunks:
            received += len(chunk)
            forwarding.put(chunk)
        forwarding.put(b"")
        self._loop.call_soon_threadsafe(self._count, received)
        return b""

    def _get(self, request: bytes, context: Any) -> Iterator[bytes]:
        forwarding = self._queues[stream_of(context)]
        while chunk := forwarding.get(timeout=WAIT_S):
            yield chunk
        self._loop.call_soon_threadsafe(self._passed.put_nowait, None)

    def _count(self, received: int) -> None:
        self._received_bytes += received


class CentralGrpcAsyncio(CentralGrpc):
    """grpc.aio on uvloop; a consumer has a task for each of its two streams."""

    queue = asyncio.Queue

    async def open_controller(self, me: Member) -> str:
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers(self._handlers(self._put, self._get))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def open_producer(self, me: Member) -> None:
        self._channel = grpc.aio.insecure_channel(me.known["controller"], options=OPTIONS)
        await asyncio.wait_for(self._channel.channel_ready(), WAIT_S)

    open_consumer = open_producer

    async def produce(self, me: Member, round_: Round) -> Done:
        put = self._channel.stream_unary(f"/{SERVICE}/Put")
        calls = [
            put(messages(me.array[:, half(consumer)]), timeout=WAIT_S, metadata=stream(me.rank, consumer))
            for consumer in readers(me.rank)
        ]
        await asyncio.gather(*calls)
        return Done()

    async def consume(self, me: Member, round_: Round) -> Done:
        began_ns = time.monotonic_ns()
        get = self._channel.unary_stream(f"/{SERVICE}/Get")

        async def fill(producer: int) -> int:
            filling = Filling(me.array[round_.pattern.part(me.rank, producer)])
            async for message in get(b"", timeout=WAIT_S, metadata=stream(producer, me.rank)):
                filling.add(message)
            return filling.size_bytes

        filled = await asyncio.gather(*(fill(producer) for producer in sources(me.rank)))
        return Done(sum(filled), time.monotonic_ns() - began_ns)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
        if self._server is not None:
            await self._server.stop(None)
        self._threads.shutdown()

    async def _put(self, chunks: AsyncIterator[bytes], context: Any) -> bytes:
        forwarding = self._queues[stream_of(context)]
        async for chunk in chunks:
            self._received_bytes += len(chunk)
            forwarding.put_nowait(chunk)
        forwarding.put_nowait(b"")
        return b""

    async def _get(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        forwarding = self._queues[stream_of(context)]
        while chunk := await forwarding.get():
            yield chunk
        self._passed.put_nowait(None)
