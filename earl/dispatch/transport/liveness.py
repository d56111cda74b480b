"""Decides that a peer that says nothing is unreachable: pure counts, by ticks of the side that waits.

A tick counts as silent only if this side ran since the tick before it: one that was frozen, or computed,
heard nothing because it did not listen.
"""

from __future__ import annotations

# A heartbeat is sent, and silence counted, this often.
BEAT_S = 0.25
# Liveness of a peer from which something is expected, after which it counts as lost.
UNANSWERED_S = 2.0
# A tick later than this says that this side did not run.
_STALLED_S = 2 * BEAT_S


class Liveness:
    """The silence of one peer. now_s: any monotonic clock."""

    def __init__(self, now_s: float) -> None:
        self._ticked_s = now_s
        self._answered = False
        self._unanswered_s = 0.0

    def answered(self) -> None:
        """The peer gave a sign of life."""
        self._answered = True

    def tick(self, now_s: float) -> bool:
        """Called every BEAT_S; returns whether the peer is unreachable: UNANSWERED_S of silence."""
        passed_s, self._ticked_s = now_s - self._ticked_s, now_s
        if self._answered:
            self._answered, self._unanswered_s = False, 0.0
        elif passed_s < _STALLED_S:
            self._unanswered_s += passed_s
        return self._unanswered_s >= UNANSWERED_S
