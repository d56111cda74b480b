"""The processes of `earl bench reference`: stage ranks, trainer ranks, and a controller between them.

    direct:      stage rank ─ publish, Done ─► controller ─► Wait ─ trainer rank ─ reads the arenas itself
    controller:  stage rank ─ Put (bytes) ───► controller ─► Get (bytes) ─ trainer rank

The controller answers Done and Wait as the scheduler answers CompleteReference and NextBatch: a few bytes.
A role is told its work as one JSON line on stdin and answers with one on stdout; times are nanoseconds of
the machine's monotonic clock, so that those of two processes compare.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.children import REPORT, MeasurementWrong
from earl.bus.connection import open_redis
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.layout.box import Box
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher, Read
from earl.dispatch.registry.registry import Registry
from earl.rpc import options
from services.trainer.reference.logprob_store import LogprobStore, logprob_key

SERVICE = "bench.Controller"
CHUNK_BYTES = 1 << 20
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Deal:
    """The sequences that each rank computes and trains: indices by rank. tokens: length of every sequence."""

    tokens: int
    computes: list[list[int]]
    trains: list[list[int]]

    def home(self, sequence: int) -> tuple[int, int]:
        """The stage rank that computes a sequence, and its index among that rank's sequences."""
        for rank, mine in enumerate(self.computes):
            if sequence in mine:
                return rank, mine.index(sequence)
        raise MeasurementWrong(f"nobody computes sequence {sequence}", REPORT)


def values(deal: Deal, sequence: int, number: int) -> np.ndarray:
    """The reference column of a sequence in a round: float32[tokens]."""
    return -((np.arange(deal.tokens, dtype=np.float32) + 7 * sequence + 13 * number) % 1021)


# --- the controller -------------------------------------------------------------------------


class ReferenceController:
    """Gathers what stage ranks put, and scatters it; `fresh` discards the round before."""

    def __init__(self) -> None:
        self.fresh(Deal(0, [], []))

    def fresh(self, deal: Deal) -> None:
        self.deal = deal
        self.parts: dict[int, np.ndarray] = {}
        self.done: set[int] = set()
        self.complete = asyncio.Event()

    def _finished(self, rank: int) -> None:
        self.done.add(rank)
        if len(self.done) == len(self.deal.computes):
            self.complete.set()

    async def put(self, chunks: AsyncIterator[bytes], context: Any) -> bytes:
        rank, received = -1, bytearray()
        async for chunk in chunks:
            if rank < 0:
                rank = int(chunk)
            else:
                received += chunk
        self.parts[rank] = np.frombuffer(received, np.float32)
        self._finished(rank)
        return b""

    async def get(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        await asyncio.wait_for(self.complete.wait(), WAIT_S)
        deal = self.deal
        column = np.empty((len(deal.trains[int(request)]), deal.tokens), np.float32)
        for row, sequence in enumerate(deal.trains[int(request)]):
            rank, place = deal.home(sequence)
            column[row] = self.parts[rank][place * deal.tokens : (place + 1) * deal.tokens]
        for chunk in chunked(column):
            yield chunk

    async def finish(self, request: bytes, context: Any) -> bytes:
        self._finished(int(request))
        return b""

    async def wait(self, request: bytes, context: Any) -> bytes:
        await asyncio.wait_for(self.complete.wait(), WAIT_S)
        return b""


def chunked(array: np.ndarray) -> Iterator[bytes]:
    """The array's bytes in messages of CHUNK_BYTES: what gRPC carries fastest."""
    flat = array.reshape(-1).view(np.uint8)
    for offset in range(0, len(flat), CHUNK_BYTES):
        yield flat[offset : offset + CHUNK_BYTES].tobytes()


async def run_controller(role: dict[str, Any]) -> None:
    controller = ReferenceController()
    handlers = {
        "Put": grpc.stream_unary_rpc_method_handler(controller.put),
        "Get": grpc.unary_stream_rpc_method_handler(controller.get),
        "Done": grpc.unary_unary_rpc_method_handler(controller.finish),
        "Wait": grpc.unary_unary_rpc_method_handler(controller.wait),
    }
    server = grpc.aio.server(options=options.server())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    answer(address=f"127.0.0.1:{port}")
    async for work in commands():
        controller.fresh(deal_of(work))
        answer()
    await server.stop(None)


# --- both ends ------------------------------------------------------------------------------


class End:
    """A rank's connection to the controller and to the data plane."""

    def __init__(self, role: dict[str, Any]) -> None:
        self.rank = int(role["rank"])
        self.config = DataPlaneConfig(transport=role["transport"])
        self.redis = open_redis(role["redis"])
        self.registry = Registry(self.redis, "{earl:bench}:", 60.0)
        self.channel = grpc.aio.insecure_channel(role["controller"], options=options.CLIENT)
        self.name = str(self.rank).encode()
        self.done = self.channel.unary_unary(f"/{SERVICE}/Done")
        self.wait = self.channel.unary_unary(f"/{SERVICE}/Wait")
        self.put = self.channel.stream_unary(f"/{SERVICE}/Put")
        self.get = self.channel.unary_stream(f"/{SERVICE}/Get")

    async def close(self) -> None:
        await self.channel.close()
        await self.redis.aclose()


async def run_stage(role: dict[str, Any]) -> None:
    """A stage rank: produces its sequences' columns and answers the time at which they were computed."""
    end = End(role)
    store = await TensorStore.open(
        end.registry,
        end.config,
        Path(role["arenas"]),
        f"reference-{end.rank}",
        incarnation=end.rank + 1,
        size_bytes=role["arena_bytes"],
    )
    logprobs = LogprobStore(store)
    held: list[str] = []
    answer()
    async for work in commands():
        await logprobs.free(held)
        deal, number = deal_of(work), work["number"]
        mine = deal.computes[end.rank]
        if work["way"] == "direct":
            held = [f"sequence/{sequence}/{number}" for sequence in mine]
            total = len(mine) * deal.tokens
            array = await logprobs.reserve(
                logprob_key("bench", number, end.rank), held, total, Box((0,), (total,))
            )
            assert array is not None, "the arena is too small"
            for place, sequence in enumerate(mine):
                array[place * deal.tokens : (place + 1) * deal.tokens] = values(deal, sequence, number)
            computed_ns = time.monotonic_ns()
            await logprobs.publish()
            published_ns = time.monotonic_ns()
            await end.done(end.name)
        else:
            held = []
            column = np.stack([values(deal, sequence, number) for sequence in mine])
            computed_ns = published_ns = time.monotonic_ns()
            await end.put(_messages(end.name, column))
        answer(at_ns=computed_ns, part_ns=published_ns - computed_ns)
    await store.close()
    await end.close()


async def _messages(name: bytes, column: np.ndarray) -> AsyncIterator[bytes]:
    yield name
    for chunk in chunked(column):
        yield chunk


async def run_trainer(role: dict[str, Any]) -> None:
    """A trainer rank: fills its column and answers when it was filled, and over which path."""
    end = End(role)
    dispatcher = await Dispatcher.create(end.registry, end.config)
    answer()
    column = np.empty((0, 0), np.float32)
    async for work in commands():
        deal, number = deal_of(work), work["number"]
        mine = deal.trains[end.rank]
        if column.shape != (len(mine), deal.tokens):
            column = np.zeros((len(mine), deal.tokens), np.float32)
        if work["way"] == "direct":
            await end.wait(end.name)
            reads = []
            for row, sequence in enumerate(mine):
                rank, place = deal.home(sequence)
                box = Box((place * deal.tokens,), ((place + 1) * deal.tokens,))
                reads.append(Read((logprob_key("bench", number, rank),), "reference", box, column[row]))
            began_ns = time.monotonic_ns()
            path = (await dispatcher.read(reads, WAIT_S)).path
        else:
            began_ns = time.monotonic_ns()
            flat, offset, path = column.reshape(-1).view(np.uint8), 0, "grpc"
            async for chunk in end.get(end.name):
                flat[offset : offset + len(chunk)] = np.frombuffer(chunk, np.uint8)
                offset += len(chunk)
        filled_ns = time.monotonic_ns()
        right = all(
            (column[row] == values(deal, sequence, number)).all() for row, sequence in enumerate(mine)
        )
        column[:] = 0.0
        answer(at_ns=filled_ns, part_ns=filled_ns - began_ns, path=path, right=right)
    await dispatcher.close()
    await end.close()


# --- a role as a process --------------------------------------------------------------------


def deal_of(work: dict[str, Any]) -> Deal:
    return Deal(work["tokens"], work["computes"], work["trains"])


async def commands() -> AsyncIterator[dict[str, Any]]:
    """JSON objects of stdin, one a line, until it ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield json.loads(line)


def answer(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


ROLES = {"controller": run_controller, "stage": run_stage, "trainer": run_trainer}


def main() -> None:
    import uvloop

    role = json.loads(sys.stdin.readline())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ROLES[role["role"]](role))


if __name__ == "__main__":
    main()
