"""The time that a view of a run shows: the whole run's, also after it was resumed."""

from __future__ import annotations

import time
from collections.abc import Callable


class RunClock:
    """Counts from the view's start, and from the first status on at least as the run's scheduler does.

    A run that is resumed continues at the time that it had; the clock never goes back. now_s: a monotonic
    clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._began_s = now_s()

    def update(self, elapsed_s: float) -> None:
        """Called with the seconds of the whole run that its status has, 0 while that is not known."""
        self._began_s = min(self._began_s, self._now_s() - elapsed_s)

    @property
    def seconds(self) -> float:
        return self._now_s() - self._began_s
