"""Calls for tickets of one worker, of which an earlier one still waits at the scheduler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from earl.bus import Bus, EmbeddedValkey
from earl.ticket_ranges import RangeSet
from services.scheduler.scheduler import Scheduler
from services.scheduler.state.tickets import Attempt
from services.scheduler.state.workers import WorkerId, WorkerRecord
from tests.support.runs import tictactoe

WORKER, OTHER, TRAINER = WorkerId("w", 1), WorkerId("other", 1), WorkerId("t", 1)
SECTIONS = {
    "warmup": {"batches": 0},
    "evaluation": {"episodes": 0},
    "scheduler": {"group_size": 2, "batch_groups": 2, "staleness": 0, "steps": 2},
}


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[Scheduler]:
    valkey = EmbeddedValkey()
    bus = await Bus.connect(await valkey.start(tmp_path), "test", source="test")
    scheduler = await Scheduler.open(tictactoe(tmp_path, **SECTIONS), tmp_path, bus)
    working = asyncio.create_task(scheduler.loop.run(asyncio.Event()))
    yield scheduler
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await bus.close()
    await valkey.stop()


async def test_a_call_that_was_repeated_takes_nothing_from_its_repetition(scheduler: Scheduler) -> None:
    """The worker's connection broke, and the scheduler has not noticed: the first call still waits."""
    for worker in (WORKER, OTHER):
        await scheduler.join(WorkerRecord(name=worker.name, incarnation=1, stage=1, capacity=16))
    await scheduler.join(WorkerRecord(name="t", incarnation=1, stage=3))
    await scheduler.reconcile(TRAINER, 1, 1, RangeSet())
    for worker in (WORKER, OTHER):
        scheduler.loop.ledger.membership.mark_alive(*worker, time.monotonic(), 1)
    taken, _ = await scheduler.lease(OTHER, 16, 5.0)
    assert len(taken) == 4
    first = asyncio.create_task(scheduler.lease(WORKER, 2, 1.0, 0))
    await asyncio.sleep(0)
    again = asyncio.create_task(scheduler.lease(WORKER, 2, 5.0, 0))
    await asyncio.sleep(0)
    await scheduler.leave(OTHER, "over")
    tickets, _ = await again
    assert len(tickets) == 2
    assert await first == ([], False)
    refs = [Attempt(ticket.id, ticket.attempt, ticket.fence) for ticket in tickets]
    assert scheduler.renew(WORKER, refs) == []
