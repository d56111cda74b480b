"""A worker's sequences as the scheduler may move them between the worker's engines, and those moves.

heartbeat ── LiveSequences ──► scheduler: which engine ends late, which has nothing? (assign/rebalance.py)
    ▲                              │
    └──── SequenceMoves ◄──────────┘    each continues at its new engine, by its token ids
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from earl.worker_report import LiveSequence, SequenceMove
from services.rollout.engines.contract.engine import EngineStats
from services.rollout.pool.replicas import EngineReplica
from services.rollout.pool.router import RequestRouter
from services.rollout.worker.actions import session_name
from services.rollout.worker.ticket import EpisodeTicket


class MovableSequences:
    """The sequences of a worker's episodes. stats: of the engines as they answered last: they know how far
    turns have got."""

    def __init__(self, router: RequestRouter, stats: Callable[[], Iterable[EngineStats]]) -> None:
        self._router = router
        self._stats = stats
        # The engines of the last report, whose indices moves are in.
        self._engines: Sequence[EngineReplica] = ()

    def report(self, episodes: Iterable[EpisodeTicket]) -> list[LiveSequence]:
        """The sequences of these episodes; none where there is one engine alone, or where not all live."""
        self._engines = list(self._router.replicas.all)
        if len(self._engines) < 2 or not all(each.live for each in self._engines):
            return []
        routed = self._router.sequences(self._engines)
        running = {name: tokens for each in self._stats() for name, tokens in each.session_tokens.items()}
        reported: list[LiveSequence] = []
        for ticket in episodes:
            for seat in ticket.seats:
                name = session_name(seat)
                if name not in routed:
                    continue
                engine, tokens, response = routed[name]
                sampled = max(0, running.get(name, 0) - tokens)
                reported.append(
                    LiveSequence(name, seat.ticket_id, engine, tokens + sampled, response + sampled)
                )
        return reported

    async def move(self, moves: Iterable[SequenceMove]) -> None:
        """Moves sequences of the last report; those that have ended, and to engines that are gone, stay."""
        for move in moves:
            if move.engine < len(self._engines):
                await self._router.move(move.session, self._engines[move.engine])
