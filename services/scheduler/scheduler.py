"""What workers and operators ask of the scheduler: operations on the ledger, answered once they are stored.

Every wait is bounded by what the caller asked, at most WAIT_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from earl.parallelism import Parallelism
from earl.transcript import Turn
from services.scheduler.batches import batch_plan, consumers
from services.scheduler.batches.columns import Lease, Location
from services.scheduler.ledger import evaluation, phases
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.loop import Loop
from services.scheduler.monitor.workers import STAGES, Report
from services.scheduler.state.records import Attempt, Batch, Member, Result, State, Ticket, Verdict
from services.scheduler.state.ticket_ranges import RangeSet

# Closed tickets that are compacted in one go: calls that came meanwhile are answered before the next ones.
COMPACTED_AT_ONCE = 512
# Longest wait within one call.
WAIT_S = 20.0


class Scheduler(Loop):
    """One run's scheduler; see the methods for what each call does."""

    # The batch that this process handed out last.
    _handed_out = 0

    async def join(self, member: Member) -> tuple[int, list[str]]:
        """A worker takes part: (newest published version, where its shards are described)."""
        self.ledger.join(member, time.monotonic())
        await self._settled()
        run = self.ledger.book.run
        return run.published, list(run.weight_keys)

    async def leave(self, name: str, incarnation: int, reason: str) -> None:
        """A worker goes: others play what it held. Raises UnknownWorker."""
        self.ledger.member(name, incarnation)
        self.ledger.leave(name, reason or "left", drained=True)
        await self._settled()

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
        self.parallelism.heartbeat(member, cut, epoch, report.gauges)
        self.report.spans(name, spans)
        if report.version != before:
            self._tickets.ring_for(name)  # it may take tickets that want those weights
        return self.may_leave

    async def lease(
        self, name: str, incarnation: int, credit: int, wait_s: float
    ) -> tuple[list[Ticket], bool]:
        """Up to `credit` tickets, waiting for the first, and whether the run is ending."""

        def look(now: float) -> list[Ticket] | None:
            self.ledger.seen(name, incarnation, now)
            return [] if self.over else self.ledger.lease(name, incarnation, credit, now) or None

        if not (tickets := await self._tickets.first(look, min(wait_s, WAIT_S), name)):
            return [], tickets is not None
        self._taken = True
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
        await self._settled()
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
    ) -> tuple[batch_plan.Plan | None, bool]:
        """The next batch cut over `ranks`, waiting for it, and whether the run is over.

        Asked again for a batch that was handed out, what stages made of it is made anew first: that may be
        what the trainer could not read.
        """
        self.ledger.trainer(name, incarnation, time.monotonic())
        planned = self.ledger.book.batch
        if planned is not None and planned.id == self._handed_out:
            self.dock.recall(planned.tickets)
            self._handed_out = 0
            self._columns.ring()

        def look(now: float) -> tuple[Batch | None, bool] | None:
            self.ledger.trainer(name, incarnation, now)
            if self.over:
                return None, True
            batch = self._next_batch()
            if batch is None and self.ledger.book.pending:
                self._tickets.ring_one()
            return (batch, False) if batch is not None else None

        batch, over = await self._batches.first(look, min(wait_s, WAIT_S)) or (None, self.over)
        if batch is None:
            return None, over
        references = self.dock.locations("reference", batch.tickets)
        # What is planned is cut once others were answered: both take their time for a large batch.
        await asyncio.sleep(0)
        if self.ledger.book.batch is not batch:
            return None, self.over  # taken apart for another trainer
        self._handed_out = batch.id
        self.traces.moved(batch.tickets)
        plan = batch_plan.cut(
            batch,
            self.ledger.book.tickets,
            max(1, ranks),
            self.config.scheduler.advantage,
            references,
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
        self.ledger.trainer(name, incarnation, time.monotonic())
        phase = phases.phase(self.ledger)
        step = phases.step(self.ledger)[0] + 1
        committed = self.ledger.commit(batch_id, version)
        if committed is not None:
            self.traces.moved(committed[0].tickets)
        self._store_clock()
        self._settle()
        if committed is not None:
            seen = self._chronicle.committed(
                self.ledger, self.dock, *committed, step=step, phase=phase, version=version, trainer=metrics,
                elapsed_s=self.elapsed_s, now_s=time.monotonic(),
            )  # fmt: skip
            if phase == phases.TRAIN:
                after = phases.phase(self.ledger)
                last = after in (phases.FINAL, phases.DONE)
                self.parallelism.committed(step, seen, last=last)
        await self._journal.durable()

    async def lease_columns(
        self, role: str, name: str, incarnation: int, credit_tokens: int, wait_s: float
    ) -> tuple[Lease, int, bool]:
        """What a stage is to make its role's columns of, waiting for the first; the tokens of what waits
        beside, and whether to leave. Raises LedgerError if the run has no such role."""
        consumers.require(self.dock, role)

        def look(now: float) -> tuple[Lease, bool] | None:
            self.ledger.seen(name, incarnation, now)
            if self.may_leave:
                return Lease(), True
            lease = consumers.lease(self.dock, self.ledger, role, (name, incarnation), credit_tokens)
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
        consumers.require(self.dock, role)
        self.ledger.seen(name, incarnation, time.monotonic())
        consumers.follow(self.dock, self.ledger)
        refused, gone = self.dock.complete(role, (name, incarnation), fence, results, lost)
        consumers.lose(self.ledger, gone)
        await self._settled()
        return refused

    async def record_checkpoint(self, name: str, incarnation: int, consumed: RangeSet) -> None:
        """A manifest with these tickets stands."""
        self.ledger.trainer(name, incarnation, time.monotonic())
        more = True
        while more:
            more = self.ledger.record_checkpoint(consumed, COMPACTED_AT_ONCE)
            # Others are answered in between: what is closed for good stays so.
            await self._journal.durable()

    async def reconcile(
        self, name: str, incarnation: int, version: int, next_batch: int, consumed: RangeSet
    ) -> int:
        """Brings the ledger to a manifest; the number of tickets rolled back."""
        self.ledger.seen(name, incarnation, time.monotonic())
        rolled_back = reconcile(self.ledger, name, incarnation, version, next_batch, consumed)
        await self._settled()
        return rolled_back

    def _next_batch(self) -> Batch | None:
        """The batch to hand out now; None while it must be waited for."""
        consumers.follow(self.dock, self.ledger)
        if consumers.must_wait(self.dock, self.ledger):
            return None
        return phases.next_batch(self.ledger, self.elapsed_s)
