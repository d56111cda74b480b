"""A scheduler with its store closes a group early, is killed, and finds what it had decided."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from earl.bus import Bus, EmbeddedValkey
from earl.ticket_ranges import RangeSet
from services.scheduler.scheduler import Scheduler
from services.scheduler.state.tickets import Attempt, EpisodeResult, Ticket, TicketVerdict
from services.scheduler.state.workers import WorkerId, WorkerRecord
from tests.support.runs import tictactoe

WORKER, TRAINER = WorkerId("w", 1), WorkerId("t", 1)
SECTIONS = {
    "warmup": {"batches": 0},
    "evaluation": {"episodes": 0},
    "scheduler": {
        "group_size": 2, "batch_groups": 2, "extra_episodes": 1, "staleness": 0, "steps": 2, "transcripts": 0,
    },
}  # fmt: skip


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    valkey = EmbeddedValkey()
    bus = await Bus.connect(await valkey.start(tmp_path), "test", source="test")
    yield bus
    await bus.close()
    await valkey.stop()


@asynccontextmanager
async def life(directory: Path, bus: Bus) -> AsyncIterator[Scheduler]:
    """One life of the scheduler, which ends between two calls."""
    scheduler = await Scheduler.open(tictactoe(directory, **SECTIONS), directory, bus)
    working = asyncio.create_task(scheduler.loop.run(asyncio.Event()))
    try:
        yield scheduler
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def report(ticket: Ticket, tokens: int) -> tuple[Attempt, EpisodeResult]:
    result = EpisodeResult(
        reward=float(ticket.id % 2), total_tokens=tokens, trained_tokens=2, oldest_version=1,
        newest_version=1, descriptor_key=f"k{ticket.id}",
    )  # fmt: skip
    return Attempt(ticket.id, ticket.attempt, ticket.fence), result


async def test_what_is_closed_early_is_refused_and_counted_across_a_kill(tmp_path: Path, bus: Bus) -> None:
    async with life(tmp_path, bus) as scheduler:
        await scheduler.join(WorkerRecord(name="w", incarnation=1, stage=1, capacity=16))
        await scheduler.join(WorkerRecord(name="t", incarnation=1, stage=3))
        await scheduler.reconcile(TRAINER, 1, 1, RangeSet())
        scheduler.loop.ledger.membership.mark_alive("w", 1, time.monotonic(), 1)
        tickets, _ = await scheduler.lease(WORKER, 6, 5.0)
        first, second, late, third, fourth, later = tickets
        await scheduler.complete(WORKER, [report(first, 4), report(second, 6)], [(), ()])
        attempt = report(late, 0)[0]
        assert scheduler.renew(WORKER, [attempt]) == [attempt]
    async with life(tmp_path, bus) as scheduler:
        [(verdict, reason)] = await scheduler.complete(WORKER, [report(late, 50)], [()])
        assert verdict is TicketVerdict.REFUSED and "closed_early" in reason
        results = [report(third, 8), report(fourth, 10), report(later, 70)]
        verdicts = await scheduler.complete(WORKER, results, [()] * 3)
        accepted, refused = TicketVerdict.ACCEPTED, TicketVerdict.REFUSED
        assert [verdict for verdict, _ in verdicts] == [accepted, accepted, refused]
        plan, _ = await scheduler.next_batch(TRAINER, 1, 5.0)
        assert plan is not None
        kept = {ticket.id for ticket in (first, second, third, fourth)}
        assert {item.ticket_id for item in plan.ranks[0]} == kept
        await scheduler.commit(TRAINER, plan.batch.id, 2, {})
        counts = scheduler.status().counts
        assert (counts["trained"], counts["dropped:closed_early"]) == (4, 2)
        assert sum(counts.values()) == scheduler.status().issued
    [line] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    # The second life counts what it closed; both reports came in it.
    assert (line["closed_early"], line["closed_length_mean"], line["length_mean"]) == (1, 60, 7)
    assert line["ledger"]["dropped:closed_early"] == 2
