"""A process that waits to be a rank of an engine ends when nobody can assign it any more."""

from __future__ import annotations

import asyncio
import os
import select
import socket

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


async def test_one_that_was_started_ahead_serves_at_the_usual_priority() -> None:
    with preloaded():
        waiting = await EngineRankProcess.start(KIND, ahead=True)
    await waiting.imported()
    assert waiting.ready
    threads = psutil.Process(waiting.process.pid).threads()
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in threads} == {usual}
    await waiting.end()
    assert not waiting.ready


async def test_one_that_is_not_needed_is_ended() -> None:
    with preloaded():
        waiting = await EngineRankProcess.start(KIND)
    await waiting.end()
    await waiting.end()
    assert not waiting.waits and waiting.process.returncode


async def test_it_ends_also_with_a_service_that_never_read_that_it_waits() -> None:
    service, process = socket.socketpair()
    waiting = asyncio.create_task(asyncio.to_thread(assigned, process.detach()))
    await asyncio.to_thread(select.select, [service], [], [], 10.0)
    service.close()
    async with asyncio.timeout(10):
        assert await waiting is None
