"""The two processes of the benchmark's third part: a producer that computes, and a consumer that reads."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.children import REPORT
from benchmarks.dispatch.lines import answer, commands, main
from benchmarks.dispatch.member import WAIT_S, Member
from benchmarks.dispatch.pattern import COLUMNS, DTYPE, MIB, TENSOR, fill, right
from earl.dispatch.layout.box import Box
from earl.dispatch.publish.tensor_store import TensorSpec
from earl.dispatch.read.reader import Read
from earl.errors import ChecksumMismatch

ROWS = 1024
# By name: columns of one row or whole rows, and reads a second.
PIECES: dict[str, tuple[tuple[int, int], float]] = {
    "4KiB": ((1, 1024), 200.0),
    "64MiB": ((ROWS, COLUMNS), 5.0),
}
BUSY_S, IDLE_S = 0.009, 0.001
_STEPS = 2_000


def key(transport: str) -> str:
    return f"busy/{transport}"


def compute(interval_s: float) -> dict[str, float]:
    """Computes in pure Python, pausing a tenth of the time: iterations, CPU time, time without a core."""
    schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    waited_ns = int(schedstat.read_text().split()[1])
    began, cpu = time.perf_counter(), time.thread_time()
    iterations = value = 0
    while (now := time.perf_counter()) < began + interval_s:
        pause_at = now + BUSY_S
        while time.perf_counter() < pause_at:
            for step in range(_STEPS):
                value = (value * 31 + step) & 0xFFFFFFFF
            iterations += 1
        time.sleep(IDLE_S)
    return {
        "iterations": iterations,
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.thread_time() - cpu,
        "waited_s": (int(schedstat.read_text().split()[1]) - waited_ns) / 1e9,
    }


async def run_producer(role: dict[str, Any]) -> None:
    """Publishes 64 MiB over every transport, then computes at each command, on a thread of its own."""
    me = Member({**role, "rows": ROWS})
    box = Box((0, 0), (ROWS, COLUMNS))
    for transport in role["transports"]:
        store = await me.store(transport)
        array = store.reserve(key(transport), {TENSOR: TensorSpec("int32", box.shape, box)})[TENSOR]
        fill(array, box, 1)
        await store.publish(key(transport))
    answer()
    async for command in commands():
        answer(**await asyncio.to_thread(compute, command["interval_s"]))
    await me.close()


async def run_consumer(role: dict[str, Any]) -> None:
    """Reads at a steady rate for an interval and answers latencies in microseconds; checks its last read."""
    me = Member({**role, "rows": ROWS})
    memory = np.ones(64 * MIB // DTYPE.itemsize, DTYPE)
    starts = np.random.default_rng(5)
    answer()
    async for command in commands():
        dispatcher = await me.dispatcher(command["transport"])
        (rows, columns), per_second = PIECES[command["piece"]]
        into = memory[: rows * columns].reshape(rows, columns)
        began, latencies_us = time.perf_counter(), []
        box = Box((0, 0), (rows, columns))
        while time.perf_counter() < began + command["interval_s"]:
            row = int(starts.integers(0, ROWS - rows + 1))
            box = Box((row, 0), (row + rows, columns))
            read_ns = time.monotonic_ns()
            await dispatcher.read([Read((key(command["transport"]),), TENSOR, box, into)], WAIT_S)
            latencies_us.append((time.monotonic_ns() - read_ns) / 1e3)
            due = began + len(latencies_us) / per_second
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if not right(into, box, 1):
            raise ChecksumMismatch(f"{command['transport']}: what was read is not what was published", REPORT)
        answer(latencies_us=latencies_us)
    await me.close()


if __name__ == "__main__":
    main({"producer": run_producer, "consumer": run_consumer})
