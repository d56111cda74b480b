"""Times what a run is doing within a step: since when, and how long it will still take. Pure.

    play the step's episodes ─► train on them ─► the next version: evaluate it?, play the next step's …

The seconds an episode took of the same work in the step before count, as far as they are known; beyond
them, and in the first step, the speed since the work was asked about first.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Doing(Enum):
    """A thing that a run waits for before its next version, or its next phase."""

    PLAYING = "playing"
    TRAINING = "training"
    EVALUATING = "evaluating"


class StepWork(NamedTuple):
    """A part of a step: what is done, with which version and with which episodes."""

    doing: Doing
    version: int
    episodes: int


class StepClock:
    """Knows the work of now, and how fast that of the step before was. Times are seconds of the run."""

    def __init__(self) -> None:
        self._work: StepWork | None = None
        self._began_s = 0.0
        # Seconds an episode of the last work of each kind.
        self._episode_s: dict[Doing, float] = {}
        # (fraction, time) when its progress was asked for first.
        self._first: tuple[float, float] | None = None

    def observe(self, work: StepWork | None, now_s: float) -> None:
        """Notes what is being done now; None where nothing is, or nobody knows."""
        if work == self._work:
            return
        if self._work is not None:
            self._episode_s[self._work.doing] = (now_s - self._began_s) / self._work.episodes
        self._work, self._began_s, self._first = work, now_s, None

    def spent_s(self, now_s: float) -> float:
        """Seconds for which the work of now has been done."""
        return max(0.0, now_s - self._began_s)

    def left_s(self, fraction: float, now_s: float) -> float | None:
        """Seconds until the work of now is done; None while nobody knows. fraction: of it that is, 0..1."""
        if self._work is None or fraction >= 1.0:
            return None
        if self._first is None:
            self._first = fraction, now_s
        as_before_s = self._episode_s.get(self._work.doing, 0.0) * self._work.episodes
        if as_before_s > self.spent_s(now_s):
            return as_before_s - self.spent_s(now_s)
        first, since_s = self._first
        if fraction <= first or now_s <= since_s:
            return None
        return (1.0 - fraction) * (now_s - since_s) / (fraction - first)
