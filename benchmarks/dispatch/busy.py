"""Reads served while their producer computes: how long they take, and what they cost the producer."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.dispatch.busy_roles import PIECES
from benchmarks.record.progress import counted
from benchmarks.role import RoleProcess
from earl.bus import EmbeddedValkey

MODULE = "benchmarks.dispatch.busy_roles"
COMPARES = (
    "busy: one producer that computes in pure Python and holds the GIL 90 % of the time, one consumer in "
    "another process that reads pieces of the producer's arena at a steady pace, by Dispatcher.read (the "
    "registry's answer included), into the same buffer. Intervals of computing alone and of computing while "
    "read from take turns; loss_percent is the median over pairs of how much fewer iterations the second "
    "had: less_cpu_percent (the computing thread had less of a core) and slower_percent (fewer iterations a "
    "second of CPU time: caches and memory shared), multiplied. waiting_for_a_core_percent of the time it "
    "was ready and the kernel had no core free, more than alone: reader, serving process and producer share "
    "this machine's cores, where a fleet's readers have their own. What less_cpu_percent exceeds that by "
    "would be the GIL's."
)


async def measure(transports: Sequence[str], rounds: int, interval_s: float) -> dict[str, Any]:
    """Latency of reads and the producer's loss, by transport and piece."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-"))
        arenas = stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-", dir="/dev/shm"))
        valkey = EmbeddedValkey()
        stack.push_async_callback(valkey.stop)
        url = await valkey.start(Path(directory))

        async def start(role: str) -> RoleProcess:
            made, _ = await RoleProcess.start(
                MODULE, role=role, redis=url, arenas=arenas, directory=directory, known={}, rows=0,
                transports=list(transports),
            )  # fmt: skip
            stack.push_async_callback(made.stop)
            return made

        producer, consumer = await start("producer"), await start("consumer")
        return {
            transport: {
                piece: await pairs(producer, consumer, transport, piece, rounds, interval_s)
                for piece in PIECES
            }
            for transport in transports
        }


async def pairs(
    producer: RoleProcess, consumer: RoleProcess, transport: str, piece: str, rounds: int, interval_s: float
) -> dict[str, Any]:
    """Figures of one transport and piece over `rounds` pairs of intervals, computing alone and while read."""
    work = {"transport": transport, "piece": piece, "interval_s": interval_s}
    latencies_us: list[float] = []
    losses: list[dict[str, float]] = []
    await consumer.ask(**{**work, "interval_s": 0.1})
    for number in counted(f"busy: rounds of {transport}, {piece}", range(rounds)):
        interval_of: dict[bool, dict[str, Any]] = {}
        for reading in (number % 2 == 0, number % 2 == 1):
            if reading:
                interval_of[True], read = await asyncio.gather(producer.ask(**work), consumer.ask(**work))
                latencies_us += read["latencies_us"]
            else:
                interval_of[False] = await producer.ask(**work)
        losses.append(loss(interval_of[False], interval_of[True]))
    ordered = sorted(latencies_us)
    result = {
        "reads": len(ordered),
        "p50_us": round(statistics.median(ordered), 1),
        "p99_us": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 1),
        **{name: round(statistics.median(pair[name] for pair in losses), 2) for name in losses[0]},
    }
    sys.stderr.write(f"busy, {transport} {piece}: {result}\n")
    return result


def loss(alone: dict[str, float], read: dict[str, float]) -> dict[str, float]:
    """Percent of its iterations a second that the producer lost, and the parts of that loss."""

    def rate(interval: dict[str, float]) -> float:
        return interval["iterations"] / interval["wall_s"]

    def core(interval: dict[str, float]) -> float:
        return interval["cpu_s"] / interval["wall_s"]

    def waiting(interval: dict[str, float]) -> float:
        return interval["waited_s"] / interval["wall_s"]

    def speed(interval: dict[str, float]) -> float:
        return interval["iterations"] / interval["cpu_s"]

    return {
        "loss_percent": 100 * (1 - rate(read) / rate(alone)),
        "less_cpu_percent": 100 * (1 - core(read) / core(alone)),
        "waiting_for_a_core_percent": 100 * (waiting(read) - waiting(alone)),
        "slower_percent": 100 * (1 - speed(read) / speed(alone)),
    }
