"""Hosts that the examiner starts itself: `module:Class`, each in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from earl.env.conformance.bench import Bench
from earl.env.conformance.host_link import HostLink
from earl.env.conformance.plan import ExamPlan
from earl.env.conformance.servicer import Examiner
from earl.errors import EnvHostLost
from earl.stack.plan import ProcessSpec
from earl.stack.process import StackProcess

ATTACH_S = 60.0
DRAIN_S = 5.0
END_S = DRAIN_S + 5.0


@asynccontextmanager
async def spawned(
    examiner: Examiner, target: str, token: str, plan: ExamPlan, capacity: int = 32
) -> AsyncIterator[Bench]:
    """A bench whose host serves `target`, "module:Class". Raises what the host ended with: ConfigError for
    a target that cannot be imported, ProcessFailed for a crash."""
    with tempfile.TemporaryDirectory(prefix="earl-env-") as directory:
        logs = Path(directory)
        count = 0

        @asynccontextmanager
        async def started() -> AsyncIterator[tuple[StackProcess, HostLink]]:
            nonlocal count
            count += 1
            # Another hash seed in each process: what follows the order of a set differs.
            process = _process(target, examiner.address, f"host-{count}", capacity, count, logs)
            await process.start({**os.environ, "EARL_TOKENS": "", "EARL_TOKEN": token})
            watching: asyncio.Task[None] | None = None
            try:
                link = await _attached(examiner, process)
                watching = asyncio.create_task(_watch(process, link))
                yield process, link
            finally:
                process.signal(signal.SIGKILL)
                if watching is not None:
                    watching.cancel()
                await process.wait()

        @asynccontextmanager
        async def another() -> AsyncIterator[HostLink]:
            async with started() as (_, link):
                yield link

        async with started() as (process, link):

            async def terminate() -> int | None:
                process.terminate()
                try:
                    async with asyncio.timeout(END_S):
                        return await process.wait()
                except TimeoutError:
                    return None

            yield Bench(link, plan, process.pid, another, terminate)


def _process(target: str, address: str, name: str, capacity: int, hash_seed: int, logs: Path) -> StackProcess:
    arguments = ("-m", "earl.env.replica", target, "--gateway", address, "--name", name)
    arguments += ("--capacity", str(capacity), "--drain-s", str(DRAIN_S), "--parent", str(os.getpid()))
    environment = {"PYTHONHASHSEED": str(hash_seed)}
    return StackProcess(ProcessSpec(name, arguments, environment=environment), logs / f"{name}.log")


async def _attached(examiner: Examiner, process: StackProcess) -> HostLink:
    """The link of the host that was just started, or what it ended with."""
    attaching = asyncio.create_task(examiner.host(ATTACH_S))
    ended = asyncio.create_task(process.wait())
    try:
        await asyncio.wait({attaching, ended}, return_when=asyncio.FIRST_COMPLETED)
        if attaching.done():
            return attaching.result()
        raise process.failure(ended.result(), "before it served")
    finally:
        attaching.cancel()
        ended.cancel()


async def _watch(process: StackProcess, link: HostLink) -> None:
    """Tells the link when its process has ended."""
    code = await process.wait()
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    last = [line for line in process.tail() if not line.startswith("info:")][-1:]
    words = "".join(f", saying {line.strip()!r}" for line in last)
    remedy = 'isolation = "process" keeps what an episode does to its process from all others'
    link.gone(EnvHostLost(f"the host {how}{words}", remedy))
