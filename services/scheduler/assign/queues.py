"""Queues of sequences before the engines that are to play them; taken by engines as slots open. Pure.

    batches that wait ─► each is planned (plan.py) behind what engines have left of those before it
        an engine has a slot  ─► the first of its queue: the one that has to begin first
        its queue is empty    ─► from the queue that ends last: the first if it is idle and that gains;
                                 otherwise the last, if it is idle or that gains

The order within a queue is that in which sequences have to begin to end by their batch's level. So a long one
of the next batch begins before short ones of this, and an engine that ends one batch late has short ones of
the next: the complementary order of HistoPipe (RhymeRL, arXiv 2508.18588).

What may begin at its engine at once is kept for that for RESERVED_S after its worker has asked last, so that
who asks first does not take what is planned for others. Nothing else is: while anything waits no engine
stays idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from services.scheduler.assign.cost import DecodeCost
from services.scheduler.assign.moves import LEAST_GAIN, LiveSequences, engine_left_s, tokens_left
from services.scheduler.assign.plan import EngineFleet, EngineKind, assign

# What a worker may begin at once is kept for it so many seconds after it has asked last: one with open
# slots asks every 2 s.
RESERVED_S = 3.0


@dataclass(frozen=True, slots=True)
class WaitingBatch:
    """Sequences of one batch that wait: the number of each, and tokens of prompt and predicted response."""

    numbers: Sequence[int]
    prompts: np.ndarray
    responses: np.ndarray


@dataclass(frozen=True, slots=True)
class PlacedSequence:
    """A sequence begins at an engine, by its index in the fleet. taken: it was planned for another."""

    number: int
    engine: int
    taken: bool = False


class EngineQueues:
    """The sequences that wait, by the engine that they are planned for.

    batches: the earlier ones first. fleet: free_s is when engines have played what they have now.
    open_slots: int (engines,), how many sequences each may begin at once. called_s: float (engines,), when
    the worker of each asked last; it is kept up to date. now_s: the seconds of the fleet begin there. Times
    are monotonic.
    """

    def __init__(
        self,
        batches: Sequence[WaitingBatch],
        fleet: EngineFleet,
        open_slots: np.ndarray,
        called_s: np.ndarray,
        now_s: float,
    ) -> None:
        self._fleet = fleet
        engines = len(fleet.kind)
        self._queues: list[deque[int]] = [deque() for _ in range(engines)]
        numbers = [number for batch in batches for number in batch.numbers]
        self._row = {number: row for row, number in enumerate(numbers)}
        prompts = np.concatenate([np.zeros(0), *(batch.prompts for batch in batches)])
        responses = np.maximum(1.0, np.concatenate([np.zeros(0), *(batch.responses for batch in batches)]))
        # By kind of engine, of each row: seconds that it takes alone, and its part of a full engine's time.
        costs = [(kind.cost, kind.slots) for kind in fleet.kinds]
        self._alone_s = [cost.alone_s(prompts, responses) for cost, _ in costs]
        self._share_s = [
            cost.added_s(prompts, responses) + cost.step_s * responses / slots for cost, slots in costs
        ]
        self._end_s = now_s + self._plan(batches)
        self._count = np.asarray([len(queue) for queue in self._queues])
        self._reserved = np.minimum(np.maximum(open_slots, 0), self._count)
        self._called_s = called_s

    def __len__(self) -> int:
        """Number of sequences that wait, as far as is known."""
        return int(self._count.sum())

    def __contains__(self, number: int) -> bool:
        """Returns whether a sequence was planned."""
        return number in self._row

    def take(
        self, engines: range, open_slots: Sequence[int], now_s: float, waits: Callable[[int], bool]
    ) -> PlacedSequence | None:
        """Takes the sequence that a worker begins next; None if nothing that waits is for it now.

        engines: of the worker, which asks now. open_slots: of each, how many sequences it has less than
        slots. waits: whether a sequence still does; those that do not are forgotten.
        """
        self._called_s[engines.start : engines.stop] = now_s
        places = sorted(range(len(engines)), key=lambda place: -open_slots[place])
        for place in places:
            engine = engines[place]
            if (number := self._next(engine, waits)) is not None:
                self._forget(engine, 0)
                self._reserved[engine] = max(0, self._reserved[engine] - 1)
                return PlacedSequence(number, engine)
            if open_slots[place] <= 0:
                continue
            slots = self._fleet.kinds[self._fleet.kind[engine]].slots
            if (placed := self._steal(engine, open_slots[place] >= slots, now_s, waits)) is not None:
                return placed
        return None

    # --- within -----------------------------------------------------------------------------

    def _plan(self, batches: Sequence[WaitingBatch]) -> np.ndarray:
        """Fills the queues in the order in which sequences have to begin, of equal ones that of numbers;
        returns when each engine has played all it has."""
        free_s = self._fleet.free_s
        engine, latest_s = [np.zeros(0, int)], [np.zeros(0)]
        for batch in batches:
            plan = assign(
                batch.prompts, batch.responses, EngineFleet(self._fleet.kinds, self._fleet.kind, free_s)
            )
            free_s = plan.end_s
            engine.append(plan.engine)
            latest_s.append(plan.latest_s)
        numbers = np.fromiter(self._row, int, len(self._row))
        engines, begins_s = np.concatenate(engine), np.concatenate(latest_s)
        for row in np.lexsort((numbers, begins_s)).tolist():
            self._queues[engines[row]].append(int(numbers[row]))
        return free_s

    def _next(self, engine: int, waits: Callable[[int], bool]) -> int | None:
        """The first of an engine's queue that still waits; those before it are forgotten."""
        queue = self._queues[engine]
        while queue:
            if waits(queue[0]):
                return queue[0]
            self._forget(engine, 0)
        return None

    def _steal(
        self, engine: int, idle: bool, now_s: float, waits: Callable[[int], bool]
    ) -> PlacedSequence | None:
        """Takes from the queue that ends last, for an engine with open slots and nothing in its own.

        One that is idle takes what has to begin first, of what does not begin there at once, if that gains,
        and otherwise what may begin last. One that plays others takes the latter, which slows those least,
        and only if it gains.
        """
        kept = np.where(now_s - self._called_s <= RESERVED_S, self._reserved, 0)
        while len(donors := np.flatnonzero(self._count > kept)):
            donor = int(donors[np.argmax(self._end_s[donors])])
            queue, place = self._queues[donor], int(kept[donor])
            if not idle or not self._gains(engine, donor, queue[place], now_s):
                place = -1
            if not waits(number := queue[place]):
                self._forget(donor, place)
            elif idle or self._gains(engine, donor, number, now_s):
                self._forget(donor, place)
                row = self._row[number]
                self._end_s[donor] -= self._share_s[self._fleet.kind[donor]][row]
                share_s = self._share_s[self._fleet.kind[engine]][row]
                self._end_s[engine] = max(self._end_s[engine], now_s) + share_s
                return PlacedSequence(number, engine, taken=True)
            else:
                return None
        return None

    def _gains(self, engine: int, donor: int, number: int, now_s: float) -> bool:
        """Returns whether a sequence that waits at a donor ends sooner at an engine with open slots."""
        kind, row = self._fleet.kind[engine], self._row[number]
        alone_s, share_s = self._alone_s[kind][row], self._share_s[kind][row]
        ends_s = max(self._end_s[engine], now_s) + share_s
        left_s = self._end_s[donor] - now_s
        return alone_s < (1 - LEAST_GAIN) * left_s and ends_s < self._end_s[donor]

    def _forget(self, engine: int, place: int) -> None:
        del self._queues[engine][place]
        self._count[engine] -= 1


@dataclass(frozen=True, slots=True)
class LeasedSequences:
    """Sequences that engines have; arrays with a number for each: the index of its engine, the predicted
    tokens of its response, and seconds since it was leased."""

    engine: np.ndarray
    predicted: np.ndarray
    elapsed_s: np.ndarray


def planned_queues(
    waiting: Sequence[WaitingBatch],
    kinds: Sequence[EngineKind],
    kind: np.ndarray,
    leased: LeasedSequences,
    called_s: np.ndarray,
    now_s: float,
) -> EngineQueues:
    """The queues of a fleet now. kinds, kind: of the engines, see EngineFleet; called_s: see EngineQueues."""
    count = np.bincount(leased.engine, minlength=len(kind))
    response = np.zeros(len(leased.engine))
    for number, each in enumerate(kinds):
        sampled = sampled_tokens(each.cost, leased.elapsed_s, leased.predicted, count[leased.engine])
        response = np.where(kind[leased.engine] == number, sampled, response)
    remaining = tokens_left(leased.predicted, response)
    live = LiveSequences(leased.engine, np.zeros(len(remaining), bool), response, remaining)
    fleet = EngineFleet(kinds, kind, engine_left_s(live, kinds, kind))
    slots = np.asarray([each.slots for each in kinds])[kind]
    return EngineQueues(waiting, fleet, slots - count, called_s, now_s)


def sampled_tokens(
    cost: DecodeCost, elapsed_s: np.ndarray, predicted: np.ndarray, sequences: np.ndarray
) -> np.ndarray:
    """Tokens of responses so far, as far as times tell: an engine of this cost has decoded so many sequences
    at once for so long. At most what was predicted; float, of the arrays' shape."""
    each_s = cost.step_s + sequences * (cost.sequence_s + cost.context_s * predicted / 2)
    return np.minimum(elapsed_s / np.maximum(each_s, 1e-9), predicted)
