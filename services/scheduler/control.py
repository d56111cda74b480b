"""The scheduler's loop: operations change the ledger, the program follows, the journal stores.

    call ─► operation on the ledger ─► program.advance ─► journal.durable ─► answer
    tick ─► leases and memberships that end ─┘
    bus ──► WeightsPublished ────────────────┘   (acknowledged once stored)

Promise: nothing is answered that is not stored; a restarted scheduler goes on where the stored
ledger stands. Every wait is bounded by what the caller asked, at most WAIT_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from earl.bus import Bus
from earl.config.run import RunConfig
from earl.errors import EpisodesFailing
from earl.parallelism import Parallelism
from earl.rpc.access import OPEN, Access
from earl.transcript import Turn
from services.scheduler import evaluation, plans, program, roles
from services.scheduler.bell import Bell
from services.scheduler.chronicle import Chronicle
from services.scheduler.codec import rules_of
from services.scheduler.dock import Lease, Location
from services.scheduler.fleet import STAGES, Report
from services.scheduler.journal import Journal
from services.scheduler.ledger import Ledger
from services.scheduler.ranges import RangeSet
from services.scheduler.reconcile import reconcile
from services.scheduler.records import Attempt, Batch, Member, Result, State, Ticket, Verdict
from services.scheduler.steering import Steering
from services.scheduler.store import LedgerStore
from services.scheduler.traces import TicketTraces, tickets_of

TICK_S = 0.1
# Longest wait within one call.
WAIT_S = 20.0
# How often the elapsed time is stored while nothing else is.
CLOCK_S = 5.0


class Scheduler:
    """One run's scheduler; see the methods for what each call does."""

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
        self.steering = Steering(
            config, run_dir, self.monitor, ledger.book, self.report, self._journal.durable, access
        )
        self.dock = roles.dock_of([roles.REFERENCE] if config.trainer.kl_coefficient > 0.0 else [])
        ledger.held_back = self.dock.held_back
        # The batch that this process handed out last.
        self._handed_out = 0
        self._bells = self._tickets, self._batches, self._columns = Bell(), Bell(), Bell()
        # Seconds that the run had worked when this process took it over.
        self.opened_s = ledger.book.run.elapsed_s
        self._began_s = time.monotonic() - self.opened_s
        self._clock_s = 0.0

    @classmethod
    async def open(cls, config: RunConfig, run_dir: Path, bus: Bus, access: Access = OPEN) -> Scheduler:
        """Takes the stored ledger over, or begins one. access: to workers. Raises BusUnavailable."""
        store = LedgerStore(bus)
        records = await store.open()
        ledger = Ledger.restored(rules_of(config), records, time.monotonic())
        return cls(config, run_dir, bus, store, ledger, access)

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop`. Raises BusUnavailable or LedgerFenced, after which nothing is answered."""
        self.ledger.book.now = time.monotonic()
        program.resume(self.ledger, self.elapsed_s)
        self._settle()
        works = (self._journal.run(), self._tick(), self._follow(), self.steering.driver.run(), stop.wait())
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
            self.steering.close()

    # --- state of the run -------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """Seconds that schedulers of this run have worked."""
        return time.monotonic() - self._began_s

    @property
    def done(self) -> bool:
        return program.phase(self.ledger) == program.DONE

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

    # --- operations -------------------------------------------------------------------------

    async def join(self, member: Member) -> tuple[int, list[str]]:
        """A worker takes part: (newest published version, where its shards are described)."""
        self.ledger.join(member, time.monotonic())
        self._settle()
        await self._journal.durable()
        run = self.ledger.book.run
        return run.published, list(run.weight_keys)

    async def leave(self, name: str, incarnation: int, reason: str) -> None:
        """A worker goes: others play what it held. Raises UnknownWorker."""
        self.ledger.member(name, incarnation)
        self.ledger.leave(name, reason or "left", drained=True)
        self._settle()
        await self._journal.durable()

    def heartbeat(
        self, name: str, incarnation: int, report: Report, spans: Sequence[tuple[str, int, int]],
        cut: Parallelism | None = None, epoch: int = 0,
    ) -> bool:  # fmt: skip
        """Whether the worker may leave. cut, epoch: how it is cut and since which switch; None if it does not
        say. Raises UnknownWorker."""
        member = self.ledger.member(name, incarnation)
        before = member.version
        self.ledger.seen(name, incarnation, report.seen_s, report.version)
        self.fleet.heard(name, report)
        self.monitor.heard(STAGES.get(member.stage, ""), name, report.gauges)
        self.steering.heard(member, cut, epoch, report.gauges)
        self.report.spans(name, spans)
        if report.version != before:
            self._tickets.ring()
        return self.may_leave

    async def lease(
        self, name: str, incarnation: int, credit: int, wait_s: float
    ) -> tuple[list[Ticket], bool]:
        """Up to `credit` tickets, waiting for the first, and whether the run is ending."""

        def look(now: float) -> list[Ticket] | None:
            self.ledger.seen(name, incarnation, now)
            return [] if self.over else self.ledger.lease(name, incarnation, credit, now) or None

        if not (tickets := await self._tickets.first(look, min(wait_s, WAIT_S))):
            return [], tickets is not None
        if self.ledger.book.pending:
            self._tickets.ring_one()
        self.monitor.playing(self.ledger.book.buckets[State.LEASED], time.monotonic())
        self.traces.moved(ticket.id for ticket in tickets)
        await self._journal.durable()
        return tickets, False

    def renew(self, name: str, incarnation: int, attempts: Sequence[Attempt]) -> list[Attempt]:
        """The attempts that are no longer this worker's."""
        return self.ledger.renew(name, incarnation, attempts, time.monotonic())

    async def complete(
        self, name: str, incarnation: int, results: Sequence[tuple[Attempt, Result]],
        transcripts: Sequence[Sequence[Turn]],
    ) -> list[tuple[Verdict, str]]:  # fmt: skip
        """Takes finished attempts with their conversations; a verdict and its reason for each."""
        self.ledger.seen(name, incarnation, time.monotonic())
        verdicts = []
        for (attempt, result), said in zip(results, transcripts, strict=True):
            ticket = self.ledger.book.tickets.get(attempt.ticket_id)
            first = ticket is not None and ticket.state is State.LEASED
            verdict, reason = self.ledger.complete(name, incarnation, attempt, result)
            if first and verdict is not Verdict.REFUSED:
                self._chronicle.ended(result)
            if verdict is Verdict.ACCEPTED:
                self._chronicle.accepted(self.ledger, ticket if first else None, result, said)
            verdicts.append((verdict, reason))
        self.traces.moved(attempt.ticket_id for attempt, _ in results)
        self._settle()
        await self._journal.durable()
        self.report.evaluations(self.ledger.book.evaluations.values(), self.elapsed_s)
        return verdicts

    def kept_versions(self) -> tuple[int, list[int]]:
        """(the best version so far, all whose checkpoints must stay); (0, []) if none is to be kept."""
        evaluations = self.ledger.book.evaluations.values()
        if not self.ledger.rules.keep_best:
            return 0, []
        return evaluation.best_version(evaluations), evaluation.kept_versions(evaluations)

    async def next_batch(
        self, name: str, incarnation: int, ranks: int, wait_s: float
    ) -> tuple[plans.Plan | None, bool]:
        """The next batch cut over `ranks`, waiting for it, and whether the run is over.

        Asked again for a batch that was handed out, what stages made of it is made anew first: that may be
        what the trainer could not read.
        """
        self.ledger.seen(name, incarnation, time.monotonic())
        self.ledger.trainer(name, incarnation)
        planned = self.ledger.book.batch
        if planned is not None and planned.id == self._handed_out:
            self.dock.recall(planned.tickets)
            self._handed_out = 0
            self._columns.ring()

        def look(now: float) -> tuple[Batch | None, bool] | None:
            self.ledger.seen(name, incarnation, now)
            self.ledger.trainer(name, incarnation)
            if self.over:
                return None, True
            batch = self._next_batch()
            if batch is None and self.ledger.book.pending:
                self._tickets.ring_one()
            return (batch, False) if batch is not None else None

        batch, over = await self._batches.first(look, min(wait_s, WAIT_S)) or (None, self.over)
        if batch is None:
            return None, over
        self._handed_out = batch.id
        self.traces.moved(batch.tickets)
        plan = plans.cut(
            batch,
            self.ledger.book.tickets,
            max(1, ranks),
            self.config.scheduler.advantage,
            self.dock.locations("reference", batch.tickets),
        )
        await self._journal.durable()
        return plan, False

    async def commit(
        self, name: str, incarnation: int, batch_id: int, version: int, metrics: Mapping[str, float]
    ) -> None:
        """The batch's tickets are trained.

        Its line in the metrics is written first: a scheduler that dies in between is told again and
        writes it twice, and the last one counts.
        """
        self.ledger.seen(name, incarnation, time.monotonic())
        self.ledger.trainer(name, incarnation)
        phase = program.phase(self.ledger)
        step = program.step(self.ledger)[0] + 1
        committed = self.ledger.commit(batch_id, version)
        if committed is not None:
            self.traces.moved(ticket.id for ticket in committed[1])
        self._store_clock()
        self._settle()
        if committed is not None:
            seen = self._chronicle.committed(
                self.ledger, self.dock, *committed, step=step, phase=phase, version=version, trainer=metrics,
                elapsed_s=self.elapsed_s, now_s=time.monotonic(),
            )  # fmt: skip
            if phase == program.TRAIN:
                after = program.phase(self.ledger)
                self.steering.committed(step, seen, goes_on=after not in (program.FINAL, program.DONE))
        await self._journal.durable()

    async def lease_columns(
        self, role: str, name: str, incarnation: int, credit_tokens: int, wait_s: float
    ) -> tuple[Lease, int, bool]:
        """What a stage is to make its role's columns of, waiting for the first; the tokens of what waits
        beside, and whether to leave. Raises LedgerError if the run has no such role."""
        roles.require(self.dock, role)

        def look(now: float) -> tuple[Lease, bool] | None:
            self.ledger.seen(name, incarnation, now)
            if self.may_leave:
                return Lease(), True
            lease = roles.lease(self.dock, self.ledger, role, (name, incarnation), credit_tokens)
            return (lease, False) if lease.trajectories else None

        lease, leaves = await self._columns.first(look, min(wait_s, WAIT_S)) or (Lease(), False)
        waiting_tokens = 0 if leaves else self.dock.waiting_tokens(role)
        if lease.trajectories:
            await self._journal.durable()
        return lease, waiting_tokens, leaves

    async def complete_columns(
        self, role: str, name: str, incarnation: int, fence: int,
        results: Mapping[tuple[int, int], Location], lost: Sequence[tuple[int, int]],
    ) -> int:  # fmt: skip
        """Takes where a role's columns lie, and what could not be read; the number of results refused."""
        roles.require(self.dock, role)
        self.ledger.seen(name, incarnation, time.monotonic())
        roles.follow(self.dock, self.ledger)
        refused, gone = self.dock.complete(role, (name, incarnation), fence, results, lost)
        roles.lose(self.ledger, gone)
        self._settle()
        await self._journal.durable()
        return refused

    async def record_checkpoint(self, name: str, incarnation: int, consumed: RangeSet) -> None:
        """A manifest with these tickets stands."""
        self.ledger.seen(name, incarnation, time.monotonic())
        self.ledger.trainer(name, incarnation)
        self.ledger.record_checkpoint(consumed)
        await self._journal.durable()

    async def reconcile(
        self, name: str, incarnation: int, version: int, next_batch: int, consumed: RangeSet
    ) -> int:
        """Brings the ledger to a manifest; the number of tickets rolled back."""
        self.ledger.seen(name, incarnation, time.monotonic())
        rolled_back = reconcile(self.ledger, name, incarnation, version, next_batch, consumed)
        self._settle()
        await self._journal.durable()
        return rolled_back

    # --- within -----------------------------------------------------------------------------

    def _settle(self) -> None:
        """The program follows what changed, and whoever waits looks again."""
        if not self.over and program.advance(self.ledger, self.elapsed_s):
            asyncio.get_running_loop().call_soon(self._settle)
        roles.follow(self.dock, self.ledger)
        self.traces.moved()
        self.monitor.playing(self.ledger.book.buckets[State.LEASED], time.monotonic())
        if self.over:
            self._tickets.ring()
        elif self.ledger.book.pending:
            self._tickets.ring_one()
        self._batches.ring()
        self._columns.ring()

    def _next_batch(self) -> Batch | None:
        """The batch to hand out now; None while it must be waited for."""
        roles.follow(self.dock, self.ledger)
        if roles.must_wait(self.dock, self.ledger):
            return None
        return program.next_batch(self.ledger, self.elapsed_s)

    def _store_clock(self) -> None:
        self._clock_s = self.elapsed_s
        self.ledger.book.run.elapsed_s = self._clock_s
        self.ledger.book.write("state", "run")

    async def _tick(self) -> None:
        while True:
            self.ledger.book.now = time.monotonic()
            self.ledger.expire(self.ledger.book.now)
            self._give_up()
            if self.elapsed_s - self._clock_s > CLOCK_S:
                self._store_clock()
            self._settle()
            if self.ledger.book.pending:
                self._tickets.ring()  # whoever was woken may have been unable to take them
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
            self._settle()
            await self._journal.durable()
            await delivery.ack()
