"""Moves between a worker's engines in a run: sequences of one that ends late go to one that has none. Pure.

    heartbeat of a worker ─► its sequences, the lengths predicted for their groups, an engine's cost
        no ticket waits ─► `services.scheduler.assign.moves` ─► moves, which the worker makes

While a ticket waits, whoever has room leases it, and nothing moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from earl.parallelism import Parallelism
from earl.worker_report import LiveSequence, SequenceMove
from services.scheduler.assign.moves import LiveSequences, moves, tokens_left
from services.scheduler.assign.plan import EngineKinds

# Engines of a worker between which sequences are moved, at most.
ENGINES = 1024


class Rebalancing:
    """Decides moves. kinds: of engines. predicted: tokens of a response to a ticket, 0 if nothing is.
    waiting: whether tickets wait to be leased."""

    def __init__(
        self,
        kinds: EngineKinds,
        predicted: Callable[[int], int],
        waiting: Callable[[], bool],
    ) -> None:
        self._kinds = kinds
        self._predicted = predicted
        self._waiting = waiting

    def may_move(self, parallelism: Parallelism) -> bool:
        """Returns whether sequences of a worker may move now, whatever they are."""
        return 1 < parallelism.dp <= ENGINES and not self._waiting() and self._kinds(parallelism) is not None

    def moves(self, parallelism: Parallelism, sequences: Sequence[LiveSequence]) -> list[SequenceMove]:
        """The moves of a worker's sequences that pay now; none where a sequence's engine is not one of
        parallelism.dp."""
        kind = self._kinds(parallelism)
        if not self.may_move(parallelism) or not sequences or kind is None:
            return []
        engines = parallelism.dp
        engine = np.asarray([each.engine for each in sequences])
        if engine.max() >= engines or len(np.unique(engine)) == engines:
            return []
        response = np.asarray([each.response_tokens for each in sequences], float)
        predicted = np.asarray([self._predicted(each.ticket_id) for each in sequences], float)
        live = LiveSequences(
            engine,
            np.zeros(len(sequences), bool),
            np.asarray([each.context_tokens for each in sequences], float),
            tokens_left(predicted, response),
        )
        made = moves(live, [kind], np.zeros(engines, int))
        return [SequenceMove(sequences[move.sequence].session, move.engine) for move in made]
