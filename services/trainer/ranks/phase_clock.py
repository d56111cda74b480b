"""Seconds of the phases of a switch, or of a change of the ranks, on one rank: where the stall is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class SwitchPhase(StrEnum):
    """A part of a switch during which its ranks do not work, by the name that reports have."""

    SAVING = "saving"
    GROUPS = "groups"
    MODEL = "model"
    MEMORY = "memory"
    CHECKSUMS = "checksums"
    CANARIES_BEFORE = "canaries before"
    MOVING = "moving"
    CANARIES_AFTER = "canaries after"
    MOVING_BACK = "moving back"
    LOADING = "loading"
    PUBLISHING = "publishing"
    ENDING = "ending"
    PAGES = "pages"


class PhaseClock:
    """Counts the seconds of each phase, in the order in which they begin; a phase may come more than once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, phase: SwitchPhase) -> Iterator[None]:
        """Counts the block's seconds as this phase's, also if it raises."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began_s
            self.seconds[phase.value] = self.seconds.get(phase.value, 0.0) + seconds
