"""Checks what happens while a batch that was planned is being made ready for its trainer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from earl.bus import Bus, EmbeddedValkey
from earl.ticket_ranges import RangeSet
from services.scheduler.batches import consumers
from services.scheduler.batches.batch_plan import PlannedColumn
from services.scheduler.batches.columns import Location
from services.scheduler.scheduler import Scheduler
from services.scheduler.state.tickets import Attempt, EpisodeResult, TicketVerdict
from services.scheduler.state.workers import WorkerId, WorkerRecord
from tests.support.runs import tictactoe

WORKER, TRAINER, REFERENCE = (WorkerId(name, 1) for name in ("w", "t", "ref"))


@asynccontextmanager
async def played(directory: Path, **sections: Any) -> AsyncIterator[Scheduler]:
    """A scheduler at work: worker "w" has played a batch of 16 for trainer "t"."""
    valkey = EmbeddedValkey()
    bus = await Bus.connect(await valkey.start(directory), "test", source="test")
    over = asyncio.Event()
    try:
        scheduler = await Scheduler.open(tictactoe(directory, **sections), directory, bus)
        working = asyncio.create_task(scheduler.loop.run(over))
        try:
            await scheduler.join(WorkerRecord(name="w", incarnation=1, stage=1, capacity=16))
            await scheduler.join(WorkerRecord(name="t", incarnation=1, stage=3))
            await scheduler.reconcile(TRAINER, 1, 1, RangeSet())
            scheduler.loop.ledger.membership.mark_alive("w", 1, time.monotonic(), 1)
            tickets, _ = await scheduler.lease(WORKER, 16, 5.0)
            results = [
                (
                    Attempt(one.id, one.attempt, one.fence),
                    EpisodeResult(
                        total_tokens=4, trained_tokens=2, oldest_version=1, newest_version=1,
                        descriptor_key=f"k{one.id}",
                    ),
                )
                for one in tickets
            ]  # fmt: skip
            verdicts = await scheduler.complete(WORKER, results, [()] * len(results))
            assert {verdict for verdict, _ in verdicts} == {TicketVerdict.ACCEPTED}
            yield scheduler
        finally:
            over.set()
            await working
    finally:
        await bus.close()
        await valkey.stop()


async def test_a_batch_taken_apart_is_not_handed_out(tmp_path: Path) -> None:
    async with played(tmp_path) as scheduler:
        asked = asyncio.create_task(scheduler.next_batch(TRAINER, 1, 5.0))
        # What a new trainer's Reconcile does first, just after the batch was planned.
        asyncio.get_running_loop().call_soon(scheduler.loop.ledger.dissolve)
        assert await asked == (None, False)
        plan, _ = await scheduler.next_batch(TRAINER, 1, 5.0)
        assert plan is not None and len(plan.ranks[0]) == 16


async def test_a_plan_names_the_columns_of_a_stage_that_leaves_just_then(tmp_path: Path) -> None:
    # Its trainer cannot read them, says so by asking again, and they are made anew: without their names
    # it would take the batch for one of a run that has no such stage.
    sections = {"warmup": {"batches": 0}, "trainer": {"kl_coefficient": 0.1}}
    async with played(tmp_path, **sections) as scheduler:
        await scheduler.join(WorkerRecord(name="ref", incarnation=1, stage=2))
        lease, _, _ = await scheduler.lease_columns("reference", REFERENCE, 1_000_000, 5.0)
        made = {(one.ticket_id, one.attempt): Location(("r",)) for one in lease.trajectories}
        assert len(made) == 16
        await scheduler.complete_columns("reference", REFERENCE, lease.fence, made, [])

        def leave() -> None:
            scheduler.loop.ledger.membership.leave("ref", "left", drained=True)
            consumers.follow(scheduler.loop.columns, scheduler.loop.ledger)

        asked = asyncio.create_task(scheduler.next_batch(TRAINER, 1, 5.0))
        asyncio.get_running_loop().call_soon(leave)
        plan, _ = await asked
        assert (
            plan is not None
            and [item.columns for item in plan.ranks[0]] == [(PlannedColumn("reference", ("r",)),)] * 16
        )


async def test_a_report_that_is_repeated_is_counted_once(tmp_path: Path) -> None:
    async with played(tmp_path) as scheduler:
        sketch = scheduler.loop.recorder.monitor.lengths.episodes
        assert sketch.weight == 16
        ticket = next(one for one in scheduler.loop.ledger.tables.tickets.values() if one.result is not None)
        assert ticket.result is not None
        again = Attempt(ticket.id, ticket.attempt, ticket.fence), ticket.result
        # Its worker never got the answer to the first report.
        assert await scheduler.complete(WORKER, [again], [()]) == [(TicketVerdict.ACCEPTED, "")]
        assert sketch.weight == 16


async def test_a_match_ends_once_though_each_seat_is_reported(tmp_path: Path) -> None:
    async with played(tmp_path, environment={"seats": 2}) as scheduler:
        assert scheduler.loop.ledger.tables.buckets["ready"] == 32
        assert scheduler.metric_figures().episodes["ok"] == 16
        status = scheduler.status()
        assert (status.metrics["step_played"], status.metrics["step_episodes"]) == (16.0, 16.0)
