"""Leases of training as they are planned for the engines of all workers. Pure: time is an argument.

    new tickets that wait, what workers have, the cost of their engines
        ─► EngineQueues, made anew when any of these has changed, and every REPLAN_S
    a worker asks ─► for each engine with open slots what is planned for it, or what it takes from another

The ledger knows nothing of it: whatever is planned, a ticket is leased to who asks, once. A scheduler that
starts again plans again. Tickets that are tried again, evaluations and warm-ups are not planned, nor is a
batch whose predictions are all alike, nor anything while predictions are too wrong, costs are not known, or
there is one engine alone: these are leased in the order of `pending`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from earl.parallelism import ROLLOUT, Parallelism
from services.scheduler.assign.plan import EngineKind, EngineKinds
from services.scheduler.assign.queues import EngineQueues, LeasedSequences, WaitingBatch, planned_queues
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state.rules import Rules
from services.scheduler.state.tickets import Ticket, TicketState
from services.scheduler.state.workers import WorkerRecord

# Seconds after which waiting tickets are planned anew, by how far leased ones have got; and after which they
# are where more were issued.
REPLAN_S, ISSUED_S = 10.0, 0.5
# Lengths are planned with while the typical ratio of a length and its prediction is no more than this. In
# `earl bench assign` plans by worse predictions took longer than the longest first.
MOST_FACTOR = 1.5


class PlannedLeases:
    """The plan of a run. error_factor: the typical ratio of a length and its prediction, None before any."""

    def __init__(
        self,
        rules: Rules,
        tables: LedgerTables,
        kinds: EngineKinds,
        error_factor: Callable[[], float | None],
    ) -> None:
        self._rules = rules
        self._tables = tables
        self._kinds = kinds
        self._error_factor = error_factor
        # The workers that were planned for, and the engines of each in the fleet.
        self._fleet: tuple[tuple[str, int, tuple[int, ...]], ...] = ()
        self._engines: dict[str, range] = {}
        self._slots: Sequence[int] = ()
        self._queues: EngineQueues | None = None
        self._planned_s = -np.inf
        self._issued = -1
        # By worker, when it asked last.
        self._called_s: dict[str, float] = {}
        # By leased ticket, the index of its engine among its worker's.
        self._placed: dict[int, int] = {}
        # Tickets that were leased as planned, those that another engine took with them, and the latter alone;
        # since the last step.
        self.leased = self.taken = 0

    def engine(self, ticket: Ticket) -> int | None:
        """The engine that a leased ticket is for, among its worker's; None if any will do."""
        # A ticket that is tried again was placed for its first attempt.
        several = len(self._engines.get(ticket.worker, ())) > 1
        return self._placed.get(ticket.id) if several and ticket.attempt == 1 else None

    def take_figures(self) -> dict[str, float]:
        """Returns how many tickets were leased as planned since the last call."""
        figures = {"planned_leases": float(self.leased), "taken_leases": float(self.taken)}
        self.leased = self.taken = 0
        return figures

    def of(self, worker: WorkerRecord, now: float) -> WorkerPlan | None:
        """Returns the plan for a worker that asks now; None if nothing is planned."""
        self._called_s[worker.name] = now
        self._follow(worker, now)
        engines = self._engines.get(worker.name)
        if self._queues is None or engines is None:
            return None
        return WorkerPlan(self, worker, self._queues, engines, now)

    def open_slots(self, worker: WorkerRecord, engines: range) -> list[int]:
        """Returns for each engine of a worker how many sequences it has less than slots."""
        count = Counter(self._placed_of(worker, len(engines)).values())
        return [self._slots[engine] - count[place] for place, engine in enumerate(engines)]

    def place(self, tickets: range, engine: int, *, taken: bool) -> None:
        """Notes the engine, among its worker's, of the tickets of an episode that is about to be leased."""
        self._placed.update(dict.fromkeys(tickets, engine))
        self.leased += len(tickets)
        self.taken += len(tickets) if taken else 0

    # --- within -----------------------------------------------------------------------------

    def _follow(self, worker: WorkerRecord, now: float) -> None:
        """Plans anew for a worker that asks, if what was planned with has changed."""
        tables, since_s = self._tables, now - self._planned_s
        known = len(self._engines.get(worker.name, ())) == worker.parallelism[0]
        if self._queues is not None and known and since_s < ISSUED_S:
            return
        fleet = tuple(
            (worker.name, worker.incarnation, worker.parallelism)
            for worker in tables.workers.values()
            if worker.stage_name == ROLLOUT
        )
        issued, limit_s = tables.pending.added, REPLAN_S
        if issued != self._issued:
            limit_s = ISSUED_S if self._queues is not None else 0.0
        if fleet == self._fleet and since_s < limit_s:
            return
        self._fleet, self._planned_s, self._issued = fleet, now, issued
        self._queues = self._plan(now)

    def _plan(self, now: float) -> EngineQueues | None:
        factor = self._error_factor()
        if factor is None or factor > MOST_FACTOR:
            return None
        workers = sorted(
            (each for each in self._tables.workers.values() if each.stage_name == ROLLOUT),
            key=lambda each: each.name,
        )
        if sum(each.parallelism[0] for each in workers) < 2:
            return None
        kinds = self._known_kinds(workers)
        if kinds is None:
            return None
        batches = list(self._waiting())
        if not batches:
            return None
        numbers = {parallelism: number for number, parallelism in enumerate(kinds)}
        kind: list[int] = []
        self._engines = {}
        for worker in workers:
            engines = worker.parallelism[0]
            self._engines[worker.name] = range(len(kind), len(kind) + engines)
            kind += [numbers[worker.parallelism]] * engines
        known = list(kinds.values())
        self._slots = [known[number].slots for number in kind]
        self._called_s = {each.name: self._called_s.get(each.name, -np.inf) for each in workers}
        called_s = np.repeat(list(self._called_s.values()), [each.parallelism[0] for each in workers])
        return planned_queues(batches, known, np.asarray(kind), self._leased(workers, now), called_s, now)

    def _waiting(self) -> Iterator[WaitingBatch]:
        """The batches that wait and whose predictions differ, the earlier ones first.

        A deterministic run's engines have the version of one batch at a time: there only the first.
        """
        batches = self._tables.pending.batches()
        for tickets in batches[:1] if self._rules.deterministic else batches:
            if tickets[0].predicted_tokens == tickets[-1].predicted_tokens:
                continue
            first = [each for each in tickets if each.id == each.match.start]
            lengths = np.asarray([each.predicted_tokens for each in first], float)
            # Prompts are not known before they are played.
            yield WaitingBatch([each.id for each in first], np.zeros(len(first)), lengths)

    def _known_kinds(self, workers: Sequence[WorkerRecord]) -> Mapping[tuple[int, ...], EngineKind] | None:
        """The engines of each parallelism of the workers; None unless all are known."""
        kinds: dict[tuple[int, ...], EngineKind] = {}
        for parallelism in dict.fromkeys(each.parallelism for each in workers):
            kind = self._kinds(Parallelism(*parallelism))
            if kind is None:
                return None
            kinds[parallelism] = kind
        return kinds

    def _leased(self, workers: Sequence[WorkerRecord], now: float) -> LeasedSequences:
        """Returns what the workers' engines have. Tickets without a prediction have the mean."""
        engine: list[int] = []
        predicted: list[int] = []
        elapsed_s: list[float] = []
        placed: dict[int, int] = {}
        for worker in workers:
            engines = self._engines[worker.name]
            for number, place in self._placed_of(worker, len(engines)).items():
                engine.append(engines[place])
                predicted.append(self._tables.tickets[number].predicted_tokens)
                elapsed_s.append(max(0.0, now - self._tables.lease_since[number]))
                placed[number] = place
        self._placed = placed
        lengths = np.asarray(predicted, float)
        known = lengths[lengths > 0]
        mean = float(known.mean()) if len(known) else 1.0
        return LeasedSequences(
            np.asarray(engine, int), np.where(lengths > 0, lengths, mean), np.asarray(elapsed_s)
        )

    def _placed_of(self, worker: WorkerRecord, engines: int) -> dict[int, int]:
        """Returns the engine of each ticket that is leased to a worker. Where that is not known, or is gone,
        the ticket counts for the engine with the fewest, as the worker places it."""
        leased = [
            number
            for number in sorted(self._tables.held.get((worker.name, worker.incarnation), ()))
            if self._tables.tickets[number].state is TicketState.LEASED
        ]
        placed = {
            number: self._placed[number]
            for number in leased
            if self._placed.get(number, engines) < engines and self._tables.tickets[number].attempt == 1
        }
        count = Counter(placed.values())
        for number in leased:
            if number not in placed:
                placed[number] = min(range(engines), key=lambda place: count[place])
                count[placed[number]] += 1
        return placed


class WorkerPlan:
    """The plan for one worker, during one call of it."""

    def __init__(
        self,
        leases: PlannedLeases,
        worker: WorkerRecord,
        queues: EngineQueues,
        engines: range,
        now: float,
    ) -> None:
        self._leases = leases
        self._queues = queues
        self._engines = engines
        self._open_slots = leases.open_slots(worker, engines)
        self._now = now

    def covers(self, ticket: Ticket) -> bool:
        """Returns whether a ticket that waits is planned."""
        return ticket.match.start in self._queues

    def next(self, new: Callable[[int], Ticket | None]) -> Ticket | None:
        """The ticket, or the first of the match, that the worker leases next; None if none is for it now.

        new: the ticket of a number if it waits and was never leased.
        """
        placed = self._queues.take(
            self._engines, self._open_slots, self._now, lambda number: new(number) is not None
        )
        ticket = new(placed.number) if placed is not None else None
        if placed is None or ticket is None:
            return None
        place = placed.engine - self._engines.start
        self._open_slots[place] -= len(ticket.match)
        self._leases.place(ticket.match, place, taken=placed.taken)
        return ticket
