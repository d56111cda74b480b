"""A process that waits to be a rank of an engine ends when nobody can assign it any more."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from contextlib import suppress

import psutil

from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.process.rank_process import EngineRankProcess, RankKind, assigned
from tests.support.preloaded import preloaded

KIND = RankKind.of(EngineSpec(name="e", model_dir=""))


async def test_it_ends_with_the_service_that_started_it() -> None:
    with preloaded():
        waiting = await EngineRankProcess.start(KIND)
    await waiting.imported()
    assert waiting.waits
    process = waiting.process
    del waiting  # and its end of the socket
    async with asyncio.timeout(20):
        assert await process.wait() == 0


def priorities(pid: int) -> set[int]:
    """The niceness of the threads of a process."""
    each: set[int] = set()
    for thread in psutil.Process(pid).threads():
        with suppress(ProcessLookupError):
            each.add(os.getpriority(os.PRIO_PROCESS, thread.id))
    return each


async def test_one_that_was_started_ahead_serves_at_the_usual_priority() -> None:
    with preloaded():
        waiting = await EngineRankProcess.start(KIND, ahead=True)
    await waiting.imported()
    assert waiting.ready
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    # The kernel removes a thread that has ended a moment after it was joined.
    async with asyncio.timeout(10):
        while priorities(waiting.process.pid) != {usual}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await waiting.end()
    assert not waiting.ready


async def test_one_that_is_not_needed_is_ended() -> None:
    with preloaded():
        waiting = await EngineRankProcess.start(KIND)
    await waiting.end()
    await waiting.end()
    assert not waiting.waits and waiting.process.returncode is not None


async def test_it_ends_also_with_a_service_that_never_read_that_it_waits() -> None:
    service, process = socket.socketpair()
    waiting = asyncio.create_task(asyncio.to_thread(assigned, process.detach()))
    await asyncio.to_thread(select.select, [service], [], [], 10.0)
    service.close()
    async with asyncio.timeout(10):
        assert await waiting is None
