"""A rollout worker that freezes, is given up, replaced under its name, and then wakes."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from earl.bus import Bus
from earl.errors import BusUnavailable, WorkerReplaced
from earl.stack.process import StackProcess
from tests.support.runs import tictactoe
from tests.support.stack import Stack, until
from tests.support.trainer import PlayedTrainer


async def of_rollout(bus: Bus, after: str, fact: str) -> Any:
    """The next event of this kind that is about rollout-0."""
    events = bus.follow(after)
    while (found := await until(events, fact)).worker.name != "rollout-0":
        pass
    return found


@pytest.mark.slow
async def test_the_one_that_wakes_ends_and_leaves_its_successor_alone(tmp_path: Path) -> None:
    config = tictactoe(tmp_path, scheduler={"membership_s": 4.0, "heartbeat_s": 0.3})
    async with Stack(config) as stack:
        await stack.up("valkey", "model", "scheduler", "gateway", "env-0", "rollout-0")
        async with PlayedTrainer(stack, beat_s=0.5) as trainer:
            bus = await stack.bus()
            frozen = stack.processes["rollout-0"]
            after = await bus.last_id()
            frozen.signal(signal.SIGSTOP)
            left = await of_rollout(bus, after, "worker_left")
            assert "sent nothing" in left.reason
            after = await bus.last_id()
            stack.processes["rollout-0"] = StackProcess(frozen.spec, frozen.log.with_name("successor.log"))
            await stack.start("rollout-0")
            joined = await of_rollout(bus, after, "worker_joined")
            assert joined.worker.incarnation != left.worker.incarnation
            arenas = set(stack.arenas.iterdir())
            frozen.signal(signal.SIGCONT)
            try:
                async with asyncio.timeout(30):
                    # Refused by the scheduler, or by Redis first: what it asked there before it froze
                    # has timed out.
                    ended = await frozen.wait()
                    assert ended in (WorkerReplaced.exit_code, BusUnavailable.exit_code), frozen.tail(20)
            finally:
                frozen.signal(signal.SIGKILL)
            # It took its own arena with it and nothing else: the run goes on with its successor's.
            assert len(arenas - set(stack.arenas.iterdir())) == 1
            plan = await trainer.next_batch()
            assert plan is not None
            assert all(len(one.columns["tokens"]) for one in await trainer.read(plan))
            workers = {one.worker.name: one.worker.incarnation for one in (await trainer.status()).workers}
            assert workers["rollout-0"] == joined.worker.incarnation
