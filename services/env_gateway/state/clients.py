"""A client's stream: its sessions by the client's own numbers, and the last answers of those that ended."""

from __future__ import annotations

from typing import Any

from services.env_gateway.state.sessions import GatewaySession

MAX_CLIENT_SESSIONS = 65_536
# Ended sessions whose last answer a client may ask for again.
KEPT_ENDED = 1_024


class ClientStream:
    """One Play stream."""

    __slots__ = ("_ended", "outbox", "sessions")

    def __init__(self, outbox: Any) -> None:
        self.outbox = outbox
        # Open ones, and the KEPT_ENDED that ended last.
        self.sessions: dict[int, GatewaySession] = {}
        # Numbers of ended sessions, oldest first.
        self._ended: dict[int, None] = {}

    def refusal(self, number: int) -> str:
        """Returns why no session of this number may be opened now; empty if one may."""
        if number in self.sessions and number not in self._ended:
            return f"session {number} is open already"
        if len(self.sessions) - len(self._ended) >= MAX_CLIENT_SESSIONS:
            return f"{MAX_CLIENT_SESSIONS} sessions are open on this stream"
        return ""

    def opened(self, session: GatewaySession) -> None:
        """A session of a number that `refusal` does not object to."""
        self._ended.pop(session.number, None)
        self.sessions[session.number] = session

    def ended(self, number: int) -> None:
        """Ends a session: its last answer is kept until KEPT_ENDED later ones have ended."""
        if number not in self.sessions:
            return
        self._ended[number] = None
        if len(self._ended) > KEPT_ENDED:
            self.forget(next(iter(self._ended)))

    def forget(self, number: int) -> GatewaySession | None:
        """The client needs it no more; returns it, None if there is none."""
        self._ended.pop(number, None)
        return self.sessions.pop(number, None)
