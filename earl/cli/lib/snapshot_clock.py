"""The time that successive snapshots of a run show."""

from __future__ import annotations

import time
from collections.abc import Callable


class SnapshotClock:
    """Counts on while the scheduler of a running run does not answer, and does not go back meanwhile.

    A scheduler that was restarted does not count the time in which it was away: the clock stands still until
    the scheduler's has caught up. now_s: a monotonic clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._answered_at: float | None = None
        self._shown_s = 0.0

    def shown(self, elapsed_s: float, *, active: bool, answered: bool) -> float:
        """The seconds that the next snapshot shows.

        elapsed_s: of the whole run, as its scheduler said last. active: the run has not ended. answered: the
        scheduler said it now.
        """
        now = self._now_s()
        if not active:
            self._answered_at, self._shown_s = None, elapsed_s
            return elapsed_s
        if answered:
            self._answered_at = now
        elif self._answered_at is not None:
            elapsed_s += now - self._answered_at
        self._shown_s = max(self._shown_s, elapsed_s)
        return self._shown_s
