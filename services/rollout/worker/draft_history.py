"""Remembers what a worker's episodes wrote, so that engines can draft from it.

    a turn is over ─► the episode's context, by its task  ─► references of its group's other episodes,
                      the turn, by its environment           and of the task's next ones: the newest first

A task is an environment with its task and its seed: what a group has in common, and what a task set gives
again in the next epoch. So one key serves Seer's drafts from siblings and RhymeRL's from earlier epochs
(arXiv 2508.18588). The history is the worker's, not an engine's: all of its engines draft from it, and it
outlives their restarts and switches. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

from services.rollout.worker.ticket import EpisodeTicket

# Bytes of all contexts of tasks together; those of the tasks played longest ago go first.
MOST_BYTES = 64 << 20
# Contexts of one task, and turns of one environment; tokens before a turn, by which its place is known again.
CONTEXTS, TURNS, LEAD = 8, 64, 16
# Tokens that one request brings along, at most.
MOST_TOKENS = 8192


class References(NamedTuple):
    """References of a request, the likeliest first: int32 token ids. of_task: how many of them, the first,
    are of its task."""

    ids: list[bytes]
    of_task: int


class DraftHistory:
    """The contexts of tasks and the turns of environments, as far as `sources` ("task", "environment") has
    them."""

    def __init__(self, sources: Set[str], most_bytes: int = MOST_BYTES) -> None:
        self._sources, self._most_bytes = sources, most_bytes
        # By task: the context of each of its episodes, by session. Oldest first, twice.
        self._tasks: OrderedDict[tuple, OrderedDict[str, bytes]] = OrderedDict()
        self._turns: dict[str, OrderedDict[bytes, None]] = {}
        self.size_bytes = 0

    def references(self, ticket: EpisodeTicket, session: str) -> References:
        """References for a request of the episode. session: its own context is left out, since the engine has
        it."""
        contexts = self._tasks.get(_task(ticket), {})
        chosen = [ids for name, ids in reversed(contexts.items()) if name != session]
        of_task = len(chosen)
        chosen += reversed(self._turns.get(ticket.label, ()))
        kept: list[bytes] = []
        tokens = MOST_TOKENS
        for ids in chosen:
            tokens -= len(ids) // 4
            if tokens < 0:
                break
            kept.append(ids)
        return References(kept, min(of_task, len(kept)))

    def note(self, ticket: EpisodeTicket, session: str, context: Sequence[int], answered: int) -> None:
        """A turn of the episode is over. context: all of its tokens so far; answered: how many of them, the
        last ones, the policy has just sampled."""
        ids = np.asarray(context, dtype=np.int32)
        if "task" in self._sources:
            self._put(_task(ticket), session, ids.tobytes())
        if "environment" in self._sources and answered:
            turns = self._turns.setdefault(ticket.label, OrderedDict())
            turn = ids[-(answered + LEAD) :].tobytes()
            turns[turn] = None
            turns.move_to_end(turn)
            if len(turns) > TURNS:
                turns.popitem(last=False)

    def _put(self, task: tuple, session: str, ids: bytes) -> None:
        contexts = self._tasks.setdefault(task, OrderedDict())
        self.size_bytes += len(ids) - len(contexts.pop(session, b""))
        contexts[session] = ids
        self._tasks.move_to_end(task)
        if len(contexts) > CONTEXTS:
            self.size_bytes -= len(contexts.popitem(last=False)[1])
        while self.size_bytes > self._most_bytes:
            _, dropped = self._tasks.popitem(last=False)
            self.size_bytes -= sum(map(len, dropped.values()))


def _task(ticket: EpisodeTicket) -> tuple:
    return ticket.environment, ticket.task_json, ticket.env_seed
