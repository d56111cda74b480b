"""Sessions between two turns, whose KV stays: which of them is evicted, and for whom.

A session that comes back to lost KV computes all of its context again, and while memory is short it takes
another's for that: with more sessions than memory, each loses its KV before its next turn comes. So the older
session goes first. A younger one does not take its KV, until it has been idle for as long as
computing that KV again would take: waiting longer than that would cost more than it can save. Pure: time is
an argument.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict

import numpy as np


class SessionAges:
    """The ages of sessions: a session is as old as its first request."""

    def __init__(self) -> None:
        self._next = itertools.count()
        self._of: dict[str, int] = {}

    def of(self, session: str) -> int:
        """The session's age: the lower the older. "" stands for another session each time."""
        if not session:
            return next(self._next)
        if session not in self._of:
            self._of[session] = next(self._next)
        return self._of[session]

    def forget(self, session: str) -> None:
        """Forgets a session that has ended."""
        self._of.pop(session, None)


class IdleSessions:
    """Idle sessions and their slots. ages [S]: of the session in each slot, the older the
    lower; a column that the owner writes."""

    def __init__(self, ages: np.ndarray) -> None:
        self._ages = ages
        # Session → slot, the longest unused first.
        self._slots: OrderedDict[str, int] = OrderedDict()
        # Until when each slot's KV is worth waiting for, in nanoseconds of the owner's clock.
        self._until_ns = np.zeros(len(ages), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, session: str) -> bool:
        return session in self._slots

    def add(self, session: str, slot: int, until_ns: int) -> None:
        """Keeps a session whose turn has ended; younger sessions do not take its slot before until_ns."""
        self._slots[session] = slot
        self._until_ns[slot] = until_ns

    def pop(self, session: str) -> int | None:
        """Takes a session out; returns its slot, None if it was not idle."""
        return self._slots.pop(session, None)

    def clear(self) -> None:
        self._slots.clear()

    def items(self) -> list[tuple[str, int]]:
        return list(self._slots.items())

    def slots(self) -> list[int]:
        return list(self._slots.values())

    def protected(self, age: int, now_ns: int, *, but: str) -> list[int]:
        """Slots that a sequence of this age may not take now. but: its own session, which is left out."""
        return [
            slot
            for session, slot in self._slots.items()
            if session != but and self._ages[slot] < age and self._until_ns[slot] > now_ns
        ]

    def next_evicted(self, now_ns: int) -> str | None:
        """The longest unused of the sessions that nobody waits for any more, else the youngest; None if no
        session is idle."""
        expired = (session for session, slot in self._slots.items() if self._until_ns[slot] <= now_ns)
        return next(expired, None) or max(
            self._slots, key=lambda session: self._ages[self._slots[session]], default=None
        )
