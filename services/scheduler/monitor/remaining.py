"""Estimates the time left in the current phase from its last steps. Pure."""

from __future__ import annotations

from collections import deque

# Steps whose mean duration counts for those to come.
STEPS = 16


class Remaining:
    """Estimates the rest of a phase. Times are seconds since the run began."""

    def __init__(self) -> None:
        self._phase = ""
        self._began_s = 0.0
        self._steps: deque[tuple[int, float]] = deque(maxlen=STEPS + 1)

    def observe(self, phase: str, done: int, time_s: float) -> None:
        """Records how many steps of a phase were done at a time; fewer than before after a rollback."""
        if phase != self._phase or (self._steps and done <= self._steps[-1][0]):
            self._phase, self._began_s = phase, self._steps[-1][1] if self._steps else 0.0
            self._steps.clear()
        self._steps.append((done, time_s))

    def seconds(self, phase: str, done: int, total: int, now_s: float) -> float | None:
        """Seconds until `total`; None as long as nothing is known of the phase.

        An evaluation observes no steps: its episodes are taken to have begun with the last step before it.
        """
        if total <= 0 or done >= total:
            return None
        if phase == self._phase and len(self._steps) > 1:
            (first, began_s), (last, at_s) = self._steps[0], self._steps[-1]
            step_s = (at_s - began_s) / (last - first)
            return max(0.0, step_s * (total - last) - (now_s - at_s))
        began_s = self._steps[-1][1] if self._steps and phase != self._phase else self._began_s
        spent_s = now_s - began_s
        return spent_s / done * (total - done) if done > 0 and spent_s > 0 else None
