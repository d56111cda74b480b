"""The scheduler's loop: the program follows what changed in the ledger, the journal stores it.

    call ─► operation (control) ─► settled: program.advance ─► journal.durable ─► answer
    tick ─► leases and memberships that end ─┘
    bus ──► WeightsPublished ────────────────┘   (acknowledged once stored)

Promise: nothing is answered that is not stored; a restarted scheduler goes on where the stored
ledger stands.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Self

from earl.bus import Bus
from earl.config.run import RunConfig
from earl.errors import EpisodesFailing
from earl.rpc.access import OPEN, Access
from services.scheduler.api.codec import rules_of
from services.scheduler.batches import consumers
from services.scheduler.files.recorder import Chronicle
from services.scheduler.files.traces import TicketTraces, tickets_of
from services.scheduler.journal.group_commit import Journal
from services.scheduler.journal.redis_store import LedgerStore
from services.scheduler.ledger import phases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.parallelism.controller import ParallelismController
from services.scheduler.state.records import State
from services.scheduler.wakeup import Bell

TICK_S = 0.1
# How often the elapsed time is stored while nothing else is.
CLOCK_S = 5.0


class Loop:
    """One run's loop, and what it works with. Who changes the ledger calls `_settled` before it answers."""

    def __init__(
        self, config: RunConfig, run_dir: Path, bus: Bus, store: LedgerStore, ledger: Ledger, access: Access
    ) -> None:
        self.config = config
        self.ledger = ledger
        self._chronicle = told = Chronicle(config, run_dir)
        self.monitor, self.fleet = told.monitor, told.fleet
        self.report, self.endings = told.report, told.endings
        self.stop_reason: str | None = None
        self._bus = bus
        self._journal = Journal(ledger.book, store)
        self.traces = TicketTraces(ledger.book, tickets_of(config))
        self.parallelism = ParallelismController(
            config, run_dir, self.monitor, ledger.book, self.report, self._journal.durable, access
        )
        self.dock = consumers.dock_of([consumers.REFERENCE] if config.trainer.kl_coefficient > 0.0 else [])
        ledger.held_back = self.dock.held_back
        # Whether tickets were leased since the last tick.
        self._taken = False
        self._bells = self._tickets, self._batches, self._columns = Bell(), Bell(), Bell()
        # Seconds that the run had worked when this process took it over.
        self.opened_s = ledger.book.run.elapsed_s
        self._began_s = time.monotonic() - self.opened_s
        self._clock_s = 0.0

    @classmethod
    async def open(cls, config: RunConfig, run_dir: Path, bus: Bus, access: Access = OPEN) -> Self:
        """Takes the stored ledger over, or begins one. access: to workers. Raises BusUnavailable."""
        store = LedgerStore(bus)
        records = await store.open()
        ledger = Ledger.restored(rules_of(config), records, time.monotonic())
        return cls(config, run_dir, bus, store, ledger, access)

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop`. Raises BusUnavailable or LedgerFenced, after which nothing is answered."""
        self.ledger.book.now = time.monotonic()
        phases.resume(self.ledger, self.elapsed_s)
        self._settle()
        works = (
            self._journal.run(),
            self._tick(),
            self._follow(),
            self.parallelism.driver.run(),
            stop.wait(),
        )
        tasks: list[asyncio.Task] = [asyncio.create_task(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            self._store_clock()
            await self._journal.durable()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._chronicle.close(self.elapsed_s)
            self.parallelism.close()

    # --- state of the run -------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """Seconds that schedulers of this run have worked."""
        return time.monotonic() - self._began_s

    @property
    def done(self) -> bool:
        return phases.phase(self.ledger) == phases.DONE

    @property
    def over(self) -> bool:
        """No more tickets, no more batches."""
        return self.done or self.stop_reason is not None

    @property
    def may_leave(self) -> bool:
        """Nobody needs the workers' memory any more."""
        book = self.ledger.book
        return self.over and (book.batch is None or book.run.trainer not in book.members)

    @property
    def message(self) -> str:
        if self.stop_reason is not None and not self.done:
            return self.stop_reason
        return f"done: version {self.ledger.book.run.version}" if self.done else ""

    def stop(self, reason: str) -> None:
        """Ends the run at the next boundary; a scheduler started later goes on."""
        if self.stop_reason is None:
            self.stop_reason = reason or "stopped"
        for bell in self._bells:
            bell.ring()

    def drain(self) -> None:
        """This process is about to end: whoever waits is answered now, with nothing."""
        for bell in self._bells:
            bell.close()

    # --- within -----------------------------------------------------------------------------

    async def _settled(self) -> None:
        """What was decided is followed, and stored."""
        self._settle()
        await self._journal.durable()

    def _settle(self) -> None:
        """The program follows what changed, and whoever waits looks again."""
        if not self.over and phases.advance(self.ledger, self.elapsed_s):
            asyncio.get_running_loop().call_soon(self._settle)
        consumers.follow(self.dock, self.ledger)
        self.traces.moved()
        self.monitor.playing(self.ledger.book.buckets[State.LEASED], time.monotonic())
        if self.over:
            self._tickets.ring()
        elif self.ledger.book.pending:
            self._tickets.ring_one()
        self._batches.ring()
        self._columns.ring()

    def _store_clock(self) -> None:
        self._clock_s = self.elapsed_s
        self.ledger.book.run.elapsed_s = self._clock_s

    async def _tick(self) -> None:
        while True:
            self.ledger.book.now = time.monotonic()
            self.ledger.expire(self.ledger.book.now)
            self._give_up()
            if self.elapsed_s - self._clock_s > CLOCK_S:
                self._store_clock()
            self._settle()
            if self.ledger.book.pending and not self._taken:
                self._tickets.ring()  # whoever was woken may have been unable to take them
            self._taken = False
            await self._journal.durable()
            self._chronicle.write(self.ledger, self.elapsed_s)
            await asyncio.sleep(TICK_S)

    def _give_up(self) -> None:
        """Raises EpisodesFailing once nothing but failures came for long enough."""
        tickets = self.ledger.given_up
        if tickets >= self.config.scheduler.give_up_after:
            fault = self.ledger.last_fault or "its lease ended"
            raise EpisodesFailing(
                f"{tickets} tickets of environment {self.config.environment.name!r} in a row failed "
                f"{self.config.scheduler.attempts} times each; the last: {fault}",
                "mend the environment or environment.task, then go on with --resume",
            )

    async def _follow(self) -> None:
        async for delivery in self._bus.subscribe("scheduler", "scheduler", kinds={"weights_published"}):
            published = delivery.event.weights_published
            self.ledger.published(published.version, published.descriptor_keys)
            await self._settled()
            await delivery.ack()
