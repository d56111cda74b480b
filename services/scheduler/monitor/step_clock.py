"""Times what a run is doing within a step: since when, and how long it will still take. Pure.

    play the step's episodes ─► train on them ─► the next version: evaluate it?, play the next step's …

The seconds an episode took of the same work in the step before count, as far as they are known; beyond
them, and in the first step, the speed since the work was asked about first. Only work that was seen from its
beginning to its regular end counts: a batch that was taken apart or rolled back tells nothing of the next.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

from services.scheduler.state.tickets import Purpose


class Doing(Enum):
    """A thing that a run waits for before its next version, or its next phase."""

    PLAYING = "playing"
    TRAINING = "training"
    EVALUATING = "evaluating"


class StepWork(NamedTuple):
    """A part of a step: what is done, with which version, and with how many episodes of which purpose."""

    doing: Doing
    version: int
    episodes: int
    purpose: Purpose


class StepClock:
    """Knows the work of now, and how fast that of the step before was. Times are seconds of the run."""

    def __init__(self) -> None:
        self._work: StepWork | None = None
        self._began_s = 0.0
        # Whether the work of now was seen to begin as one that tells how long the next takes.
        self._regular = False
        # Seconds an episode of the last work of each kind.
        self._episode_s: dict[tuple[Doing, Purpose], float] = {}
        # (fraction, time) when its progress was asked for first.
        self._first: tuple[float, float] | None = None

    def observe(self, work: StepWork | None, now_s: float) -> None:
        """Notes what is being done now; None where nothing is, or nobody knows."""
        before = self._work
        if work == before:
            return
        if before is None or work is None:
            self._regular = False
        else:
            if self._regular and _completes(before, work):
                self._episode_s[before.doing, before.purpose] = (now_s - self._began_s) / before.episodes
            self._regular = _begins(before, work)
        self._work, self._began_s, self._first = work, now_s, None

    def spent_s(self, now_s: float) -> float:
        """Seconds for which the work of now has been done."""
        return max(0.0, now_s - self._began_s)

    def left_s(self, fraction: float, now_s: float) -> float | None:
        """Seconds until the work of now is done; None while nobody knows. fraction: of it that is, 0..1.

        A fraction below the first one counts as the first: the work was begun again.
        """
        if self._work is None or not 0.0 <= fraction < 1.0:
            return None
        if self._first is None or fraction < self._first[0]:
            self._first = fraction, now_s
        as_before_s = self._episode_s.get((self._work.doing, self._work.purpose), 0.0) * self._work.episodes
        if as_before_s > self.spent_s(now_s):
            return as_before_s - self.spent_s(now_s)
        first, since_s = self._first
        if fraction <= first or now_s <= since_s:
            return None
        left_s = (1.0 - fraction) * (now_s - since_s) / (fraction - first)
        return left_s if math.isfinite(left_s) else None


def _completes(work: StepWork, after: StepWork) -> bool:
    """Returns whether work that is followed by `after` came to its end, and was not cut short."""
    match work.doing:
        case Doing.PLAYING:
            return after.doing is Doing.TRAINING and after.version == work.version
        case Doing.TRAINING:
            return after.version > work.version
        case Doing.EVALUATING:
            return after.doing is not Doing.EVALUATING and after.version == work.version


def _begins(before: StepWork, work: StepWork) -> bool:
    """Returns whether work that follows `before` begins as in every step.

    A step's episodes are played while its version is evaluated, and most are still there after a batch was
    taken apart: what is then left to play takes less time.
    """
    return work.doing is not Doing.PLAYING or work.version > before.version
