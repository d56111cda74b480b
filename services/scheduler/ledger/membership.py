"""Workers that take part in a run: when they joined last, whether they live, and what ends with them.

    join ─► worker ─┬─ heartbeat, lease, report: it lives ─┐
              ▲     └──────────────────────────────────────┘
              └─ no sign of life for membership_s, or it leaves: its tickets are tried again

Pure: time is an argument (monotonic seconds). What an operation refuses raises UnknownWorker or
WorkerReplaced and has changed nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from msgspec.structs import replace

from earl.errors import UnknownWorker, WorkerReplaced
from earl.worker_report import WorkerDevice
from services.scheduler.ledger.attempts import TicketAttempts
from services.scheduler.ledger.tables import HELD, LedgerTables
from services.scheduler.state.facts import WorkerJoined, WorkerLeft
from services.scheduler.state.rules import Rules
from services.scheduler.state.tickets import TicketState
from services.scheduler.state.workers import Incarnations, WorkerRecord

# Incarnations of one name that are remembered.
INCARNATIONS = 16
# Names without a worker of which they are. Forgetting one is safe: no successor takes part that a former
# life could evict, and one that comes back evicts that life.
FORMER_NAMES = 4096
# Heartbeats that a worker may miss before it counts as gone.
MISSED = 3


class Membership:
    """Transitions of workers. attempts: takes the tickets of workers that are gone."""

    def __init__(self, rules: Rules, tables: LedgerTables, attempts: TicketAttempts) -> None:
        self.rules = rules
        self.tables = tables
        self._attempts = attempts
        # By worker: the largest fence that was leased to it, and the largest that it has received, as far
        # as this process has seen them.
        self._leased_fences: dict[str, int] = {}
        self._received_fences: dict[str, int] = {}

    @property
    def heartbeat_s(self) -> float:
        """Seconds between a worker's heartbeats: all together send at most `heartbeats_per_s` a second.

        Nomad's max_heartbeats_per_second bounds a cluster's beats in this way.
        """
        interval_s = min(self.rules.heartbeat_s, self.rules.membership_s / MISSED)
        return max(interval_s, len(self.tables.workers) / self.rules.heartbeats_per_s)

    @property
    def membership_s(self) -> float:
        """Seconds without a heartbeat after which a worker no longer takes part."""
        return max(self.rules.membership_s, MISSED * self.heartbeat_s)

    def join(self, worker: WorkerRecord, now: float) -> None:
        """Adds a worker. An older incarnation of its name loses leases and arena at once.

        Raises WorkerReplaced if this is the older one: frozen for a while, it is awake again.
        """
        tables = self.tables
        self._refuse_replaced(worker.name, worker.incarnation)
        self._remember(worker)
        worker = replace(worker, devices=_lasting(worker.devices))
        known = tables.workers.get(worker.name)
        if known is not None and known.incarnation != worker.incarnation:
            self.leave(worker.name, f"replaced by incarnation {worker.incarnation:x}")
            known = None
            if worker.name == tables.run.trainer:
                # Its weights lay in the memory of the one that is gone.
                tables.run.published, tables.run.weight_keys = 0, []
        if known is None:
            tables.record_fact(WorkerJoined(worker))
        else:
            worker = replace(worker, version=known.version)
            if known.epoch:
                # What a switch has given it since it joined first.
                worker = replace(worker, parallelism=known.parallelism, epoch=known.epoch)
        tables.workers[worker.name] = worker
        if self.membership_s > tables.run.silent_s:
            tables.run.silent_s = self.membership_s
        tables.worker_until.prolong(worker.name, now + self.membership_s)

    def mark_alive(self, name: str, incarnation: int, now: float, version: int | None = None) -> WorkerRecord:
        """Notes a sign of life. Raises UnknownWorker, WorkerReplaced unless this incarnation takes part."""
        worker = self.worker(name, incarnation)
        self.tables.worker_until.prolong(name, now + self.membership_s)
        if version is not None and version != worker.version:
            worker = replace(worker, version=version)
            self.tables.workers.set_unstored(name, worker)
        return worker

    def keep_devices(self, name: str, devices: Sequence[WorkerDevice]) -> None:
        """Keeps what the ranks of a worker compute on, where it reports that; without their free memory."""
        kept = _lasting(devices)
        if kept and kept != self.tables.workers[name].devices:
            self.tables.change_worker(name, devices=kept)

    def leased(self, worker: WorkerRecord, fence: int) -> None:
        """Notes that tickets up to this fence were leased to the worker."""
        self._leased_fences[worker.name] = fence

    def retry_unreceived(self, worker: WorkerRecord, newest_fence: int) -> None:
        """Makes those tickets pending again whose leases the worker was not told of: their fences are larger
        than that of all it has. No attempt has failed by that."""
        tables, name = self.tables, worker.name
        received = self._received_fences.get(name, 0)
        self._received_fences[name] = max(received, newest_fence)
        if newest_fence < received or self._leased_fences.get(name, newest_fence + 1) <= newest_fence:
            return  # it is of before a later call; or nothing was leased since
        for number in sorted(tables.held.get((name, worker.incarnation), ())):
            ticket = tables.tickets[number]
            if ticket.state is TicketState.LEASED and ticket.fence > newest_fence:
                self._attempts.retry(ticket)
        self._leased_fences[name] = newest_fence

    def leave(self, name: str, reason: str, *, drained: bool = False) -> None:
        """Ends a membership: what the worker ran is tried again, and what lay in its arena is lost.

        drained: it leaves because it was asked to, so none of its attempts failed.
        """
        tables = self.tables
        worker = tables.workers.pop(name, None)
        if worker is None:
            return
        tables.worker_until.drop(name)
        self._leased_fences.pop(name, None)
        self._received_fences.pop(name, None)
        for number in sorted(tables.held.get((name, worker.incarnation), ())):
            ticket = tables.tickets.get(number)
            if ticket is None or ticket.state not in HELD:
                continue  # fell with its group, or was tried again with its match, meanwhile
            if ticket.state is not TicketState.PLANNED:
                (self._attempts.retry if drained else self._attempts.fail)(ticket)
            elif tables.batch is not None:
                tables.batch.lose(number)
        tables.record_fact(WorkerLeft(worker, reason))

    def expire(self, now: float) -> None:
        """Ends memberships that have expired."""
        for name in self.tables.worker_until.take_due(now):
            self.leave(name, f"sent nothing for {self.membership_s:g} s")

    def worker(self, name: str, incarnation: int) -> WorkerRecord:
        self._refuse_replaced(name, incarnation)
        worker = self.tables.workers.get(name)
        if worker is None or worker.incarnation != incarnation:
            raise UnknownWorker(
                f"worker {name} ({incarnation:x}) does not take part in this run", "join (again)"
            )
        return worker

    def _remember(self, worker: WorkerRecord) -> None:
        """Notes which incarnation is the last of its name, and forgets names that had no new one for the
        longest."""
        tables = self.tables
        known = tables.incarnations.get(worker.name, Incarnations()).incarnations
        if worker.incarnation in known:
            return
        tables.incarnations.pop(worker.name, None)  # names are in the order of their last incarnations
        tables.incarnations[worker.name] = Incarnations((*known, worker.incarnation)[-INCARNATIONS:])
        while len(tables.incarnations) > len(tables.workers) + FORMER_NAMES:
            del tables.incarnations[next(name for name in tables.incarnations if name not in tables.workers)]

    def _refuse_replaced(self, name: str, incarnation: int) -> None:
        known = self.tables.incarnations.get(name)
        if known is not None and incarnation in known.incarnations[:-1]:
            raise WorkerReplaced(
                f"worker {name} ({incarnation:x}) was replaced by ({known.incarnations[-1]:x})",
                "end this process: the newer one runs, and nothing of this one is needed any more",
            )


def _lasting(devices: Sequence[WorkerDevice]) -> tuple[WorkerDevice, ...]:
    return tuple(dataclasses.replace(device, free_bytes=0) for device in devices)
