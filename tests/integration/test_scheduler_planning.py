"""A batch that is taken apart while it is being made ready for the trainer that it was planned for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from earl.bus import Bus, EmbeddedValkey
from services.scheduler.control import Scheduler
from services.scheduler.ranges import RangeSet
from services.scheduler.records import Attempt, Member, Result, Verdict
from tests.support.runs import tictactoe


async def test_a_batch_taken_apart_is_not_handed_out(tmp_path: Path) -> None:
    valkey = EmbeddedValkey()
    bus = await Bus.connect(await valkey.start(tmp_path), "test", source="test")
    over = asyncio.Event()
    try:
        scheduler = await Scheduler.open(tictactoe(tmp_path), tmp_path, bus)
        working = asyncio.create_task(scheduler.run(over))
        try:
            await scheduler.join(Member(name="w", incarnation=1, stage=1, capacity=16))
            await scheduler.join(Member(name="t", incarnation=1, stage=3))
            await scheduler.reconcile("t", 1, 1, 1, RangeSet())
            tickets, _ = await scheduler.lease("w", 1, 16, 5.0)
            played = [
                (
                    Attempt(one.id, one.attempt, one.fence),
                    Result(total_tokens=4, trained_tokens=2, descriptor_key=f"k{one.id}"),
                )
                for one in tickets
            ]
            verdicts = await scheduler.complete("w", 1, played, [()] * len(played))
            assert {verdict for verdict, _ in verdicts} == {Verdict.ACCEPTED}

            asked = asyncio.create_task(scheduler.next_batch("t", 1, 1, 5.0))
            # What a new trainer's Reconcile does first, just after the batch was planned.
            asyncio.get_running_loop().call_soon(scheduler.ledger.dissolve)
            assert await asked == (None, False)

            plan, _ = await scheduler.next_batch("t", 1, 1, 5.0)
            assert plan is not None and len(plan.ranks[0]) == 16
        finally:
            over.set()
            await working
    finally:
        await bus.close()
        await valkey.stop()
