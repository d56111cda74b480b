"""Ways to give sequences to engines, all under the same admission, in a simulated fleet.

round-robin  sequences to engines in turns, in proportion to their slots
credit       as the ledger leases with scheduler.length_order = "drawn": an engine with open slots takes the
             oldest sequences that wait
longest      as with length_order = "longest": of the oldest batch the sequences of the groups that are
             predicted to be longest, to each engine its share of them
planned      as with length_order = "planned": what is planned for an engine; as with "longest" while
             predictions are too wrong
history      `services.scheduler.assign`: planned by predicted lengths, moved to where slots are open
oracle       the same planner and moves, with true lengths
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import numpy as np

from benchmarks.assign.simulate import SimulatedFleet
from benchmarks.assign.traces import SequenceBatch
from services.scheduler.assign.history import LengthHistory
from services.scheduler.assign.moves import LiveSequences, engine_left_s, moves, tokens_left
from services.scheduler.assign.plan import EngineFleet, assign
from services.scheduler.assign.queues import EngineQueues, LeasedSequences, WaitingBatch, planned_queues
from services.scheduler.ledger.pending import PendingTickets
from services.scheduler.ledger.planned_leases import MOST_FACTOR, REPLAN_S
from services.scheduler.state.tickets import Purpose, Ticket

ROUND_ROBIN, CREDIT, LONGEST, PLANNED = "round-robin", "credit", "longest", "planned"
HISTORY, ORACLE = "history", "oracle"
POLICIES = (ROUND_ROBIN, CREDIT, LONGEST, PLANNED, HISTORY, ORACLE)


class RoundRobin:
    """Gives sequences to engines in turns; an engine with k times the slots of the smallest has k turns."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        slots = [state.kind.slots for state in fleet.engines]
        turns = [
            (turn / (count // min(slots)), engine)
            for engine, count in enumerate(slots)
            for turn in range(count // min(slots))
        ]
        self._turns = cycle([engine for _, engine in sorted(turns)])
        self._queues: list[deque[int]] = [deque() for _ in slots]

    def released(self, fleet: SimulatedFleet, numbers: range) -> None:
        for number, engine in zip(numbers, self._turns, strict=False):
            self._queues[engine].append(number)

    def take(self, engine: int, credit: int) -> Iterator[int]:
        queue = self._queues[engine]
        return (queue.popleft() for _ in range(min(credit, len(queue))))

    def ended(self, number: int) -> None:
        """Learns nothing."""

    def poll(self, fleet: SimulatedFleet) -> None:
        """Moves nothing."""


class Credit:
    """Leases the oldest sequences to whoever has open slots, as many as those (`TicketAttempts.lease`)."""

    def __init__(self) -> None:
        self._pending: deque[int] = deque()

    def released(self, fleet: SimulatedFleet, numbers: range) -> None:
        self._pending.extend(numbers)

    def take(self, engine: int, credit: int) -> Iterator[int]:
        return (self._pending.popleft() for _ in range(min(credit, len(self._pending))))

    def ended(self, number: int) -> None:
        """Learns nothing."""

    def poll(self, fleet: SimulatedFleet) -> None:
        """Moves nothing."""


class Longest:
    """Leases by credit, of the oldest batch that waits the groups first that are predicted to be longest, to
    each engine its share of them: the scheduler's own order (`services.scheduler.ledger.pending`).

    history: predicts lengths as a batch is released, and learns.
    """

    def __init__(self, fleet: SimulatedFleet, history: LengthHistory) -> None:
        self._fleet = fleet
        self._history = history
        self._pending = PendingTickets(len(fleet.batches[0].prompts) // fleet.group_size)
        slots = [state.kind.slots for state in fleet.engines]
        self._share = [each / sum(slots) for each in slots]

    def released(self, fleet: SimulatedFleet, numbers: range) -> None:
        lengths = predicted(self._history, fleet.sequences, numbers, fleet.group_size)
        for number, length in zip(numbers, lengths.tolist(), strict=True):
            group = number // fleet.group_size
            self._pending.add(
                Ticket(
                    id=number, group=group, purpose=Purpose.TRAIN, index=group, env_seed=0, sample_seed=0,
                    min_version=0, temperature=1.0, predicted_tokens=round(length),
                )
            )  # fmt: skip

    def take(self, engine: int, credit: int) -> Iterator[int]:
        for ticket in self._pending.deal(credit, lambda: self._share[engine]):
            self._pending.remove(ticket)
            yield ticket.id

    def ended(self, number: int) -> None:
        observe(self._history, self._fleet.sequences, number, number // self._fleet.group_size)

    def poll(self, fleet: SimulatedFleet) -> None:
        """Moves nothing."""


class LeasedAsPlanned(Longest):
    """Leases what is planned for an engine, as with length_order = "planned"; each engine is a worker.
    While predictions are too wrong, the longest first (`services.scheduler.ledger.planned_leases`).
    """

    def __init__(self, fleet: SimulatedFleet, history: LengthHistory) -> None:
        super().__init__(fleet, history)
        self._queues: EngineQueues | None = None
        self._planned_s = 0.0
        self._called_s = np.zeros(len(fleet.engines))
        # By number, what was predicted as its batch was released, and when it was leased.
        self._predicted: dict[int, int] = {}
        self._leased_s: dict[int, float] = {}

    def released(self, fleet: SimulatedFleet, numbers: range) -> None:
        super().released(fleet, numbers)
        for batch in self._pending.batches():
            self._predicted.update((each.id, each.predicted_tokens) for each in batch)
        self._plan()

    def take(self, engine: int, credit: int) -> Iterator[int]:
        now_s = self._fleet.now_s
        plan = EnginePlan(self._queues, engine, credit, now_s) if self._queues is not None else None
        for ticket in self._pending.deal(credit, lambda: self._share[engine], plan):
            self._pending.remove(ticket)
            self._leased_s[ticket.id] = now_s
            yield ticket.id

    def poll(self, fleet: SimulatedFleet) -> None:
        """Asks again for every engine with open slots, as waiting workers do."""
        if fleet.now_s - self._planned_s >= REPLAN_S:
            self._plan()
        for engine, state in enumerate(fleet.engines):
            if self._pending and len(state.running) < state.kind.slots:
                fleet.fill(engine, self)

    def _plan(self) -> None:
        fleet, self._planned_s = self._fleet, self._fleet.now_s
        factor = self._history.error.factor
        if factor is None or factor > MOST_FACTOR:
            self._queues = None
            return
        waiting = []
        for tickets in self._pending.batches():
            lengths = np.asarray([each.predicted_tokens for each in tickets], float)
            waiting.append(WaitingBatch([each.id for each in tickets], np.zeros(len(lengths)), lengths))
        running, engines, _ = fleet.progress()
        numbers = running.tolist()
        leased = LeasedSequences(
            engines,
            np.asarray([self._predicted[number] for number in numbers], float),
            fleet.now_s - np.asarray([self._leased_s[number] for number in numbers]),
        )
        self._queues = planned_queues(waiting, fleet.kinds, fleet.kind, leased, self._called_s, fleet.now_s)


class EnginePlan:
    """The plan for one engine that asks (`services.scheduler.ledger.pending.LeasePlan`)."""

    def __init__(self, queues: EngineQueues, engine: int, open_slots: int, now_s: float) -> None:
        self._queues = queues
        self._engines = range(engine, engine + 1)
        self._open_slots = open_slots
        self._now_s = now_s

    def covers(self, ticket: Ticket) -> bool:
        return ticket.id in self._queues

    def next(self, new: Callable[[int], Ticket | None]) -> Ticket | None:
        placed = self._queues.take(
            self._engines, [self._open_slots], self._now_s, lambda number: new(number) is not None
        )
        self._open_slots -= 1
        return new(placed.number) if placed is not None else None


class Planned:
    """Plans each batch when it is released, and moves sequences to engines with open slots.

    history: predicts lengths, and learns them; None for an oracle, who knows them.
    """

    def __init__(self, fleet: SimulatedFleet, history: LengthHistory | None) -> None:
        self._fleet = fleet
        self._history = history
        # By number, as of the release of its batch: predicted tokens, and when it has to begin.
        self._predicted = np.zeros(len(fleet.sequences.prompts))
        self._latest_s = np.zeros(len(fleet.sequences.prompts))
        # By engine, a heap of (when it has to begin, number); an entry that `_waiting` denies is void.
        self._queues: list[list[tuple[float, int]]] = [[] for _ in fleet.engines]
        self._waiting: dict[int, int] = {}

    def released(self, fleet: SimulatedFleet, numbers: range) -> None:
        part = slice(numbers.start, numbers.stop)
        self._predicted[part] = self._lengths(part)
        free_s = engine_left_s(self._live()[1], fleet.kinds, fleet.kind)
        engines = EngineFleet(fleet.kinds, fleet.kind, free_s)
        plan = assign(fleet.sequences.prompts[part], self._predicted[part], engines)
        self._latest_s[part] = fleet.now_s + plan.latest_s
        for number, engine in zip(numbers, plan.engine.tolist(), strict=True):
            self._enqueue(number, engine)

    def take(self, engine: int, credit: int) -> Iterator[int]:
        queue = self._queues[engine]
        while credit and queue:
            number = heapq.heappop(queue)[1]
            if self._waiting.get(number) == engine:
                del self._waiting[number]
                credit -= 1
                yield number

    def ended(self, number: int) -> None:
        if self._history is not None:
            observe(self._history, self._fleet.sequences, number, number // self._fleet.group_size)

    def poll(self, fleet: SimulatedFleet) -> None:
        if all(len(state.running) == state.kind.slots for state in fleet.engines):
            return
        numbers, live = self._live()
        takers = set()
        for move in moves(live, fleet.kinds, fleet.kind):
            number = int(numbers[move.sequence])
            takers.add(move.engine)
            if number in self._waiting:
                self._enqueue(number, move.engine)
            else:
                fleet.move(number, move.engine, self)
        for engine in takers:
            fleet.fill(engine, self)

    def _enqueue(self, number: int, engine: int) -> None:
        self._waiting[number] = engine
        heapq.heappush(self._queues[engine], (float(self._latest_s[number]), number))

    def _lengths(self, part: slice) -> np.ndarray:
        sequences = self._fleet.sequences
        if self._history is None:
            return sequences.responses[part].astype(float)
        return predicted(self._history, sequences, range(part.start, part.stop), self._fleet.group_size)

    def _live(self) -> tuple[np.ndarray, LiveSequences]:
        """(numbers, state) of the sequences that run or wait."""
        running, engines, done = self._fleet.progress()
        waiting = np.fromiter(self._waiting, int, len(self._waiting))
        numbers = np.concatenate([running, waiting])
        engine = np.concatenate([engines, np.fromiter(self._waiting.values(), int, len(waiting))])
        done = np.concatenate([done, np.zeros(len(waiting))])
        sequences = self._fleet.sequences
        if self._history is None:
            left = np.maximum(1e-6, sequences.responses[numbers] - done)
        else:
            left = tokens_left(self._predicted[numbers], done)
        waits = np.arange(len(numbers)) >= len(running)
        return numbers, LiveSequences(engine, waits, sequences.prompts[numbers] + done, left)


def observe(history: LengthHistory, sequences: SequenceBatch, number: int, group: int) -> None:
    """Records a sequence as the scheduler would the episode of its ticket."""
    history.observe(
        str(sequences.environment[number]),
        int(sequences.task[number]),
        group,
        int(sequences.prompts[number]),
        int(sequences.responses[number]),
    )


def predicted(
    history: LengthHistory, sequences: SequenceBatch, numbers: Sequence[int], group_size: int
) -> np.ndarray:
    """Lengths in tokens that a history predicts for whole groups; float (numbers,)."""
    first = numbers[::group_size]
    lengths = [
        history.predict(
            str(sequences.environment[number]), int(sequences.task[number]), int(sequences.prompts[number])
        ).tokens
        for number in first
    ]
    return np.repeat(np.asarray(lengths), group_size)
