"""Moves sequences from engines that end late to engines with open slots. Pure.

    nothing waits at an engine, and it has open slots ─► it takes what waits where most is left, longest first
    an engine has nothing at all, and nothing waits   ─► it takes running ones from where most is left

A sequence that waits moves for nothing. One that runs moves by its token ids: what it holds is computed again
at the other engine, which counts. Nothing moves unless its engine would end sooner by LEAST_GAIN of what it
has left.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.scheduler.assign.plan import EngineKind

# The part of what an engine has left by which it has to end sooner.
LEAST_GAIN = 0.1
# A sequence is taken to grow by this part of its response at least: in a long tail, the longer one is, the
# more it has left.
GROWTH = 1.0


@dataclass(frozen=True, slots=True)
class LiveSequences:
    """Sequences that have not ended; arrays with a number for each.

    engine: index of an engine. waits: it has not begun there. context: tokens so far; of one that waits, its
    prompt's. left: tokens that it will yet get, see `tokens_left`.
    """

    engine: np.ndarray
    waits: np.ndarray
    context: np.ndarray
    left: np.ndarray


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A sequence, by its index, to another engine."""

    sequence: int
    engine: int


def tokens_left(predicted: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Tokens that sequences will yet get, by the predicted length of their responses and that so far."""
    return np.maximum(predicted - response, np.maximum(1.0, GROWTH * response))


def engine_left_s(live: LiveSequences, kinds: Sequence[EngineKind], kind: np.ndarray) -> np.ndarray:
    """Seconds until each engine has played what it has; float (engines,). kind: int (engines,), indices in
    `kinds`."""
    engines = len(kind)
    longest = np.zeros(engines)
    np.maximum.at(longest, live.engine, live.left)
    tokens = np.bincount(live.engine, live.left, engines)
    total_s = np.zeros(engines)
    for number, each in enumerate(kinds):
        steps = np.maximum(longest, tokens / each.slots)
        seconds = each.cost.step_s * steps + np.bincount(live.engine, _added_s(live, each), engines)
        total_s = np.where(kind == number, seconds, total_s)
    return total_s


def moves(live: LiveSequences, kinds: Sequence[EngineKind], kind: np.ndarray) -> list[PlannedMove]:
    """The moves that pay now. kind: int (engines,), indices in `kinds`."""
    if not len(live.engine):
        return []
    return _Rebalancing(live, kinds, kind).moves()


class _Rebalancing:
    def __init__(self, live: LiveSequences, kinds: Sequence[EngineKind], kind: np.ndarray) -> None:
        self._live = live
        self._kinds = [kinds[number] for number in kind]
        self._played = np.bincount(live.engine[~live.waits], minlength=len(kind))
        waiting = np.bincount(live.engine[live.waits], minlength=len(kind))
        slots = np.asarray([each.slots for each in self._kinds])
        self._open = np.where(waiting == 0, slots - self._played, 0)
        self._left_s = engine_left_s(live, kinds, kind)
        # By engine: those that run, then those that wait; the longest of each first.
        self._sequences = np.lexsort((-live.left, live.waits, live.engine))
        self._starts = np.searchsorted(live.engine[self._sequences], np.arange(len(kind) + 1))
        self._waiting = np.flatnonzero(waiting).tolist()

    def moves(self) -> list[PlannedMove]:
        takers = np.flatnonzero(self._open > 0)
        step_s = np.asarray([each.cost.step_s for each in self._kinds])
        takers = takers[np.lexsort((step_s[takers], self._left_s[takers]))].tolist()
        made = self._waiting_moves(takers)
        used = {move.engine for move in made} | set(self._waiting)
        idle = [taker for taker in takers if taker not in used and not self._played[taker]]
        return made + self._running_moves(idle, used)

    def _waiting_moves(self, takers: Sequence[int]) -> list[PlannedMove]:
        made: list[PlannedMove] = []
        # (-seconds left, engine, place of the next sequence of it that waits)
        donors = [
            (-float(self._left_s[engine]), engine, int(self._starts[engine] + self._played[engine]))
            for engine in self._waiting
        ]
        heapq.heapify(donors)
        for taker in takers:
            if not donors:
                break
            negative_s, donor, place = heapq.heappop(donors)
            taken = self._taken(taker, donor, place, -negative_s)
            made += [PlannedMove(int(sequence), taker) for sequence in taken]
            place += len(taken)
            if place < self._starts[donor + 1] and len(taken):
                given_s = self._share_s(taken, self._kinds[donor]).sum()
                heapq.heappush(donors, (negative_s + float(given_s), donor, place))
        return made

    def _taken(self, taker: int, donor: int, place: int, left_s: float) -> np.ndarray:
        """Sequences that wait at the donor, from `place` on, that the taker takes: half of the difference."""
        live, kind = self._live, self._kinds[taker]
        waiting = self._sequences[place : self._starts[donor + 1]]
        alone_s = kind.cost.alone_s(live.context[waiting], live.left[waiting])
        waiting = waiting[alone_s < (1 - LEAST_GAIN) * left_s][: int(self._open[taker])]
        if len(waiting) and waiting[0] != self._sequences[place]:
            return waiting[:0]
        passed_s = np.cumsum(self._share_s(waiting, kind))
        difference_s = left_s - float(self._left_s[taker])
        return waiting[: int(np.searchsorted(passed_s, difference_s / 2))]

    def _share_s(self, sequences: np.ndarray, kind: EngineKind) -> np.ndarray:
        """Seconds that each sequence takes of a full engine."""
        left = self._live.left[sequences]
        return kind.cost.step_s * left / kind.slots + kind.cost.added_s(self._live.context[sequences], left)

    def _running_moves(self, idle: Sequence[int], used: set[int]) -> list[PlannedMove]:
        made: list[PlannedMove] = []
        donors = iter(np.argsort(-self._left_s).tolist())
        for taker in idle:
            for donor in donors:
                if donor in used or not self._played[donor]:
                    continue
                moved = self._moved(donor, taker)
                if len(moved):
                    made += [PlannedMove(int(sequence), taker) for sequence in moved]
                    break
        return made

    def _moved(self, donor: int, taker: int) -> np.ndarray:
        """The donor's sequences that leave it: the shortest ones, so many that the later of both engines ends
        as early as possible; none where that gains too little."""
        kind, other = self._kinds[donor], self._kinds[taker]
        running = self._sequences[self._starts[donor] : self._starts[donor + 1]]
        context, left = self._live.context[running], self._live.left[running]
        # By how many stay, the longest first: one at least where steps are no quicker at the other engine.
        stay = np.arange(int(kind.cost.step_s <= other.cost.step_s), len(running))
        if not len(stay):
            return running[:0]
        here_s = kind.cost.added_s(context, left) - kind.cost.prompt_s * context
        # There the context of what moves is computed first.
        there_s = other.cost.added_s(context, left)
        tokens, here_s, there_s = (
            np.concatenate(([0.0], np.cumsum(each))) for each in (left, here_s, there_s)
        )
        longest = np.where(stay > 0, left[0], 0.0)
        stays_s = kind.cost.step_s * np.maximum(longest, tokens[stay] / kind.slots) + here_s[stay]
        steps = np.maximum(left[stay], (tokens[-1] - tokens[stay]) / other.slots)
        leaves_s = other.cost.step_s * steps + there_s[-1] - there_s[stay]
        # The fewest move, where several numbers are equally good.
        ends_s = np.maximum(stays_s, leaves_s)[::-1]
        best = int(np.argmin(ends_s))
        gains = ends_s[best] < (1 - LEAST_GAIN) * self._left_s[donor]
        return running[len(running) - best - 1 :] if gains else running[:0]


def _added_s(live: LiveSequences, kind: EngineKind) -> np.ndarray:
    """Seconds that each live sequence adds to an engine of a kind, where the context of those that run is
    computed."""
    computed_s = np.where(live.waits, 0.0, kind.cost.prompt_s * live.context)
    return kind.cost.added_s(live.context, live.left) - computed_s
