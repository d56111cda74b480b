"""Decides which requests may share KV in an engine whose prefix cache compares contents: a salt for each
request.

A salt is the number of the commit after which the request's session began; a request without a session
has the newest. KV of older weights is so reused by the later turns of the sessions that began with
them (kv_on_update = "keep"), and by nobody else. Pure.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

# Sessions remembered at most; one that is forgotten only loses its prefix.
SESSIONS = 1 << 16


class CacheSaltTable:
    """Remembers after which commit each session began."""

    def __init__(self) -> None:
        self._commits = 0
        # The longest unused first.
        self._sessions: OrderedDict[str, int] = OrderedDict()
        self._in_flight: Counter[str] = Counter()

    def take(self, session: str) -> str:
        """The salt of a request that begins now."""
        if not session:
            return str(self._commits)
        commit = self._sessions.setdefault(session, self._commits)
        self._sessions.move_to_end(session)
        self._in_flight[session] += 1
        if len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)
        return str(commit)

    def end(self, session: str) -> None:
        """A request that `take` was called for has ended."""
        if session:
            self._in_flight[session] -= 1
            if not self._in_flight[session]:
                del self._in_flight[session]

    def release(self, session: str) -> None:
        """The session has ended."""
        self._sessions.pop(session, None)

    def commit(self) -> None:
        """New weights are in use."""
        self._commits += 1

    def forget(self) -> None:
        """Ends reuse of earlier KV: idle sessions start with new salts, those in flight continue."""
        self._sessions = OrderedDict.fromkeys(self._in_flight, self._commits)

    @property
    def idle(self) -> int:
        """Sessions without a request in flight."""
        return sum(session not in self._in_flight for session in self._sessions)
