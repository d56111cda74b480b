"""Starts the ranks of a case, each a fresh process, and gathers their peaks of memory."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys

from benchmarks.children import process_error, within
from benchmarks.memory_model.cases import MemoryCase
from benchmarks.record.checkout import ROOT

MODULE = "benchmarks.memory_model.rank"
CASE_S = 600.0


async def measure(case: MemoryCase) -> int:
    """Bytes that the largest rank took. Raises ProcessFailed if one fails, DeadlineExceeded after CASE_S."""
    return (await peaks(case))["bytes"]


async def peaks(case: MemoryCase) -> dict[str, int]:
    """Bytes of the rank that took most, as rank.measure has them. Raises as `measure`."""
    config, ranks = case.config, case.degrees.devices
    threads = getattr(config, case.stage).threads or 1
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if ranks > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        environment |= {"GLOO_SOCKET_IFNAME": "lo"}
    text = json.dumps(case.as_json())
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", MODULE, text, cwd=ROOT,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        async with within(CASE_S, "a case"):
            outputs = await asyncio.gather(*(process.communicate() for process in processes))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise process_error("a rank", process.returncode, errors.decode(errors="replace"))
    figures = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    return max(figures, key=lambda peak: peak["bytes"])
