"""A process that waits to be a rank of an engine ends when nobody can assign it any more."""

from __future__ import annotations

import asyncio

from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.process.rank_process import EngineRankProcess, RankKind
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


async def test_one_that_is_not_needed_is_ended() -> None:
    with preloaded():
        waiting = await EngineRankProcess.start(KIND)
    await waiting.end()
    await waiting.end()
    assert not waiting.waits and waiting.process.returncode
