"""The operations of workers and operators on the ledger, each answered once its changes are stored.

Every wait is bounded by what the caller asked, at most CALL_WAIT_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from earl.bus import Bus
from earl.config.protected import protected_kl
from earl.config.run import RunConfig
from earl.config.task_set import TaskSet
from earl.parallelism import ROLLOUT, TRAINER, Parallelism
from earl.recorded_episodes import RecordedTurn
from earl.rpc.access import OPEN, Access
from earl.switch_figures import StageSwitch
from earl.ticket_ranges import RangeSet
from earl.transcript import TranscriptTurn
from earl.worker_report import BusySpan, LiveSequence, SequenceMove
from services.scheduler.batches import batch_plan, consumers
from services.scheduler.batches.columns import ColumnLease, Location
from services.scheduler.ledger import evaluation, phases
from services.scheduler.ledger.groups import episode_places
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.loop import RunLoop
from services.scheduler.monitor.workers import WorkerReport
from services.scheduler.parallelism.device_pool import LayoutWish
from services.scheduler.state.device_move import DeviceMove
from services.scheduler.state.recorded_schedule import RecordedSchedule
from services.scheduler.state.run import Batch
from services.scheduler.state.switch_records import SwitchRecord
from services.scheduler.state.tickets import Attempt, EpisodeResult, Ticket, TicketState, TicketVerdict
from services.scheduler.state.workers import WorkerId, WorkerRecord
from services.scheduler.status import MetricFigures, SchedulerStatus, metric_figures_of, status_of
from services.scheduler.wakeup import CALL_WAIT_S

# Closed tickets that are compacted in one go: calls that came meanwhile are answered before the next ones.
COMPACTED_AT_ONCE = 512


class Scheduler:
    """The operations of workers and operators on one run; a call answers once its changes are stored."""

    def __init__(self, loop: RunLoop) -> None:
        self.loop = loop
        # By worker: its last LeaseTickets call that told a newest fence, while it waits.
        self._lease_calls: dict[str, object] = {}
        # The batch that this process handed out last.
        self._handed_out = 0

    @classmethod
    async def open(cls, config: RunConfig, run_dir: Path, bus: Bus, access: Access = OPEN) -> Self:
        """Takes the stored ledger over, or begins one. access: to workers. Raises BusUnavailable."""
        return cls(await RunLoop.open(config, run_dir, bus, access))

    # --- what all calls share ---------------------------------------------------------------

    @property
    def config(self) -> RunConfig:
        return self.loop.config

    @property
    def task_sets(self) -> Mapping[str, TaskSet]:
        """The task sets by the label of their environment."""
        return self.loop.task_sets

    @property
    def recorded(self) -> RecordedSchedule | None:
        """The recorded episodes that the warm-up imitates; None if it plays."""
        return self.loop.recorded

    @property
    def tables(self) -> LedgerTables:
        """The ledger's tables, to be read."""
        return self.loop.ledger.tables

    @property
    def membership_s(self) -> float:
        """Seconds without a heartbeat after which a worker counts as lost, at the fleet's size now."""
        return self.loop.ledger.membership.membership_s

    @property
    def heartbeat_s(self) -> float:
        """Seconds between two heartbeats of a worker, at the fleet's size now."""
        return self.loop.ledger.membership.heartbeat_s

    def traceparent(self, ticket_id: int) -> str:
        """The traceparent of a leased ticket, "" if it is not traced."""
        return self.loop.traces.parent(ticket_id)

    def planned_engine(self, ticket: Ticket) -> int | None:
        """The engine among its worker's that a leased ticket is planned for; None if any will do."""
        return planned.engine(ticket) if (planned := self.loop.ledger.planned) is not None else None

    # --- workers' calls ---------------------------------------------------------------------

    async def join(self, worker: WorkerRecord) -> tuple[int, list[str]]:
        """Adds a worker: (newest published version, keys of its shards' descriptors)."""
        known = self.loop.ledger.tables.workers.get(worker.name)
        self.loop.ledger.membership.join(worker, time.monotonic())
        if worker.stage_name == TRAINER and (known is None or known.incarnation != worker.incarnation):
            self.loop.give_devices(TRAINER)  # it loads its state
        await self.loop.settled()
        run = self.loop.ledger.tables.run
        return run.published, list(run.weight_keys)

    async def leave(self, worker: WorkerId, reason: str) -> None:
        """Removes a worker: others play the tickets that it held. Raises UnknownWorker."""
        self.loop.ledger.membership.worker(*worker)
        self.loop.ledger.membership.leave(worker.name, reason or "left", drained=True)
        await self.loop.settled()

    def heartbeat(
        self, worker: WorkerId, report: WorkerReport, spans: Sequence[BusySpan],
        parallelism: Parallelism | None = None, epoch: int = 0,
        switches: Sequence[StageSwitch[Parallelism]] = (),
    ) -> tuple[bool, float]:  # fmt: skip
        """Records a worker's heartbeat: (whether it may leave, tokens of a sequence that waits there and that
        no division of the devices holds, 0 if none does). Raises UnknownWorker.

        parallelism, epoch: what it runs with and since which switch; None if not reported. switches: that it
        made by itself.
        """
        record = self.loop.ledger.membership.worker(*worker)
        before = record.version
        self.loop.ledger.membership.mark_alive(*worker, report.received_s, report.version)
        self.loop.ledger.membership.keep_devices(worker.name, report.devices)
        self.loop.recorder.fleet.reported(worker.name, report)
        self.loop.recorder.monitor.reported(record.stage_name, worker.name, report.gauges, worker.incarnation)
        refused_tokens = self.loop.parallelism.heartbeat(
            record, parallelism, epoch, report.gauges, now=report.received_s, switches=switches
        )
        self.loop.recorder.report.spans(worker.name, spans)
        if report.version != before:
            # It may take tickets that want those weights.
            self.loop.tickets_available.notify_name(worker.name)
        return self.loop.may_leave, refused_tokens

    def may_move(self, worker: WorkerId, parallelism: Parallelism) -> bool:
        """Returns whether sequences of a worker with this parallelism may move between its engines now."""
        rebalancing, record = self.loop.rebalancing, self.loop.ledger.membership.worker(*worker)
        if rebalancing is None or record.stage_name != ROLLOUT:
            return False
        return rebalancing.may_move(parallelism)

    def moves(self, parallelism: Parallelism, sequences: Sequence[LiveSequence]) -> list[SequenceMove]:
        """Moves of a rollout worker's sequences between its engines, which have this parallelism."""
        rebalancing = self.loop.rebalancing
        return rebalancing.moves(parallelism, sequences) if rebalancing is not None else []

    async def lease(
        self, worker: WorkerId, credit: int, wait_s: float, newest_fence: int | None = None
    ) -> tuple[list[Ticket], bool]:
        """Up to `credit` tickets, waiting for the first, and whether the run is ending.

        newest_fence: of the tickets that the worker has; what was leased to it later is tried again. Such a
        worker makes one call after the other: an earlier one that still waits gets nothing any more.
        """
        call = object()
        if newest_fence is not None:
            self._lease_calls[worker.name] = call

        def attempt(now: float) -> list[Ticket] | None:
            self.loop.ledger.membership.mark_alive(*worker, now)
            if self.loop.stopping:
                return []
            if newest_fence is not None and self._lease_calls.get(worker.name) is not call:
                return None
            return self.loop.ledger.lease(*worker, credit, now, newest_fence) or None

        try:
            tickets = await self.loop.tickets_available.first(attempt, min(wait_s, CALL_WAIT_S), worker.name)
        finally:
            if self._lease_calls.get(worker.name) is call:
                del self._lease_calls[worker.name]
        if not tickets:
            return [], tickets is not None
        self.loop.tickets_taken = True
        if self.loop.ledger.tables.pending:
            self.loop.tickets_available.notify_one()
        leased = self.loop.ledger.tables.buckets[TicketState.LEASED]
        self.loop.recorder.monitor.playing(leased, time.monotonic())
        self.loop.traces.moved(ticket.id for ticket in tickets)
        await self.loop.journal.durable()
        return tickets, False

    def renew(self, worker: WorkerId, attempts: Sequence[Attempt]) -> list[Attempt]:
        """The attempts that are no longer this worker's."""
        return self.loop.ledger.renew(*worker, attempts, time.monotonic())

    async def complete(
        self, worker: WorkerId, results: Sequence[tuple[Attempt, EpisodeResult]],
        transcripts: Sequence[Sequence[TranscriptTurn]], recorded: Sequence[Sequence[RecordedTurn]] = (),
    ) -> list[tuple[TicketVerdict, str]]:  # fmt: skip
        """Takes finished attempts with their conversations; a verdict and its reason for each.

        Those of a match are taken together. recorded: the turns of each in token ids, of a run that records.
        """
        self.loop.ledger.membership.mark_alive(*worker, time.monotonic())
        verdicts: dict[int, tuple[TicketVerdict, str]] = {}
        numbers = [attempt.ticket_id for attempt, _ in results]
        for places in episode_places(self.loop.ledger.tables, numbers):
            reports = [results[place] for place in places]
            tickets = [self.loop.ledger.tables.tickets.get(attempt.ticket_id) for attempt, _ in reports]
            first = all(ticket is not None and ticket.state is TicketState.LEASED for ticket in tickets)
            (attempt, result), *others = reports
            environment = tickets[0].environment if tickets[0] is not None else ""
            answer = self.loop.ledger.attempts.complete(*worker, attempt, result, others)
            if first and answer[0] is not TicketVerdict.REFUSED:
                self.loop.recorder.ended(result, environment)
            for place, ticket in zip(places, tickets, strict=True):
                verdicts[place] = answer
                if answer[0] is TicketVerdict.ACCEPTED:
                    known = ticket if first else None
                    result, transcript = results[place][1], transcripts[place]
                    turns = recorded[place] if recorded else ()
                    self.loop.recorder.accepted(self.loop.ledger, known, result, transcript, turns)
                elif answer[0] is TicketVerdict.REFUSED:
                    self.loop.recorder.refused(ticket, *results[place])
        self.loop.traces.moved(attempt.ticket_id for attempt, _ in results)
        await self.loop.settled()
        self.loop.recorder.evaluated(self.loop.ledger, self.loop.elapsed_s)
        return [verdicts[place] for place in range(len(results))]

    def kept_versions(self) -> tuple[int, list[int]]:
        """(the best version so far, all whose checkpoints must stay); (0, []) if none is to be kept."""
        evaluations = self.loop.ledger.tables.evaluations.values()
        if not self.loop.ledger.rules.keep_best:
            return 0, []
        return evaluation.best_version(evaluations), evaluation.kept_versions(evaluations)

    async def next_batch(
        self, worker: WorkerId, ranks: int, wait_s: float, lost_replays: Collection[int] = ()
    ) -> tuple[batch_plan.BatchPlan | None, bool]:
        """The next batch split over `ranks`, waiting for it, and whether the run has ended.

        Asked again for a batch that was handed out, what stages made of it is made again first: that may be
        what the trainer could not read. lost_replays: it could not read these tickets, which leave the batch.
        """
        self.loop.ledger.require_trainer(*worker, time.monotonic())
        self.loop.ledger.lose_replays(frozenset(lost_replays))
        planned = self.loop.ledger.tables.batch
        if planned is not None and planned.id == self._handed_out and not lost_replays:
            self.loop.columns.recall(planned.tickets)
            self._handed_out = 0
            self.loop.columns_available.notify()

        def attempt(now: float) -> tuple[Batch | None, bool] | None:
            self.loop.ledger.require_trainer(*worker, now)
            if self.loop.stopping:
                return (None, True) if self.loop.give_devices(TRAINER) else None
            batch = self._next_batch()
            may_work = self.loop.give_devices(ROLLOUT if batch is None else TRAINER)
            if batch is not None and not may_work:
                return None
            if batch is None and self.loop.ledger.tables.pending:
                self.loop.tickets_available.notify_one()
            return (batch, False) if batch is not None else None

        answer = await self.loop.batches_available.first(attempt, min(wait_s, CALL_WAIT_S))
        batch, stopping = answer or (None, self.loop.stopping)
        if batch is None:
            return None, stopping
        columns, teacher_weight = self.loop.roles.planned(batch)
        # Splitting a large batch takes its time, as planning it did: others are answered in between.
        await asyncio.sleep(0)
        if self.loop.ledger.tables.batch is not batch:
            return None, self.loop.stopping  # taken apart for another trainer
        self._handed_out = batch.id
        self.loop.traces.moved([*batch.tickets, *batch.replays])
        config, tickets = self.loop.config, self.loop.ledger.tables.tickets
        plan = batch_plan.split_batch(
            batch, tickets, max(1, ranks), config.scheduler.advantage, columns,
            masks_truncated=config.scheduler.truncated == "mask",
            protected_kl=protected_kl(config), teacher_weight=teacher_weight,
            score_coefficient=config.score_coefficient,
            reference_for=self.loop.ledger.rules.reference_for, kept=self.loop.ledger.replay.sources,
        )  # fmt: skip
        await self.loop.journal.durable()
        return plan, False

    async def commit(
        self, worker: WorkerId, batch_id: int, version: int, metrics: Mapping[str, float]
    ) -> None:
        """The batch's tickets are trained.

        Its line in the metrics is written first: a scheduler that dies in between receives it again and
        writes it twice, and the last one counts.
        """
        self.loop.ledger.require_trainer(*worker, time.monotonic())
        phase = phases.phase(self.loop.ledger)
        step = phases.step(self.loop.ledger)[0] + 1
        committed = self.loop.ledger.commit(batch_id, version)
        if committed is not None:
            self.loop.traces.moved([*committed.batch.tickets, *committed.batch.replays])
            self.loop.roles.committed(committed)
        self.loop.store_clock()
        self.loop.settle()
        if committed is not None:
            now_s = time.monotonic()
            observed = self.loop.recorder.committed(
                self.loop.ledger, self.loop.columns, committed, step=step, phase=phase, version=version,
                trainer=metrics,
                elapsed_s=self.loop.elapsed_s, now_s=now_s,
            )  # fmt: skip
            if phase == phases.TRAIN:
                after = phases.phase(self.loop.ledger)
                last = after in (phases.FINAL, phases.DONE)
                self.loop.parallelism.committed(step, observed, now=now_s, last=last)
        await self.loop.journal.durable()

    async def lease_columns(
        self, role: str, worker: WorkerId, credit_tokens: int, wait_s: float
    ) -> tuple[ColumnLease, int, bool]:
        """Leases trajectories to make a role's columns of, waiting for the first.

        Returns the lease, the tokens of the trajectories that still wait for the role, and whether the worker
        is to leave. Raises LedgerError if the run has no such role.
        """
        consumers.require(self.loop.columns, role)

        def attempt(now: float) -> tuple[ColumnLease, bool] | None:
            self.loop.ledger.membership.mark_alive(*worker, now)
            if self.loop.may_leave or role in self.loop.columns.ended:
                return ColumnLease(), True
            lease = consumers.lease(self.loop.columns, self.loop.ledger, role, worker, credit_tokens)
            return (lease, False) if lease.trajectories else None

        answer = await self.loop.columns_available.first(attempt, min(wait_s, CALL_WAIT_S))
        lease, leaves = answer or (ColumnLease(), False)
        waiting_tokens = 0 if leaves else self.loop.columns.waiting_tokens(role)
        if lease.trajectories:
            await self.loop.journal.durable()
        return lease, waiting_tokens, leaves

    async def complete_columns(
        self, role: str, worker: WorkerId, fence: int,
        results: Mapping[tuple[int, int], Location], lost: Sequence[tuple[int, int]],
    ) -> int:  # fmt: skip
        """Takes what a role has made, and what could not be read; the number of results refused."""
        consumers.require(self.loop.columns, role)
        self.loop.ledger.membership.mark_alive(*worker, time.monotonic())
        refused = consumers.complete(self.loop.columns, self.loop.ledger, role, worker, fence, results, lost)
        await self.loop.settled()
        return refused

    async def record_checkpoint(self, worker: WorkerId, consumed: RangeSet, version: int) -> None:
        """Records that a manifest with these tickets exists."""
        self.loop.ledger.require_trainer(*worker, time.monotonic())
        more = True
        while more:
            more = self.loop.ledger.record_checkpoint(consumed, COMPACTED_AT_ONCE, version)
            # Others are answered in between: what is closed for good stays so.
            await self.loop.journal.durable()

    async def reconcile(self, worker: WorkerId, version: int, next_batch: int, consumed: RangeSet) -> int:
        """Brings the ledger to a manifest; the number of tickets rolled back."""
        self.loop.ledger.membership.mark_alive(*worker, time.monotonic())
        rolled_back = reconcile(self.loop.ledger, *worker, version, next_batch, consumed)
        await self.loop.settled()
        return rolled_back

    # --- operators' calls -------------------------------------------------------------------

    def status(self) -> SchedulerStatus:
        """The run as operators and metrics see it, now."""
        return status_of(self.loop)

    def metric_figures(self) -> MetricFigures:
        """The figures that only metrics show, now."""
        return metric_figures_of(self.loop)

    def stop(self, reason: str) -> None:
        """Ends the run at the next boundary; a scheduler started later continues it."""
        self.loop.stop(reason)

    async def set_parallelism(
        self, stage: str, request: tuple[int, Parallelism] | None, pin: bool, wait_s: float
    ) -> tuple[int, SwitchRecord | None]:
        """Changes a stage's parallelism, pins or unpins it, and waits: see ParallelismController.set."""
        return await self.loop.parallelism.set(stage, request, pin, wait_s)

    async def move_devices(
        self, giver: str, taker: str, devices: int, layouts: Mapping[str, LayoutWish], wait_s: float
    ) -> DeviceMove | None:
        """Moves devices from one stage to another, and waits: see ParallelismController.move."""
        return await self.loop.parallelism.move(giver, taker, devices, layouts, wait_s)

    def _next_batch(self) -> Batch | None:
        """The batch to hand out now; None while it must be waited for."""
        consumers.follow(self.loop.columns, self.loop.ledger)
        if consumers.must_wait(self.loop.columns, self.loop.ledger):
            return None
        return phases.next_batch(self.loop.ledger, self.loop.elapsed_s)
