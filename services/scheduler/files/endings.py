"""endings.jsonl: how episodes ended, over the run's time; what failed and was tried again is counted too.

A line is some seconds in which episodes ended: time_s at their end, and a count by ending. Some of those
of infra_error are counted as out_of_memory besides: their engine was lost to it. Its sums over all lines
are those of the run: nothing is taken back with a step that is rolled back. What ended in the seconds
before a scheduler was killed is in no line.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from earl.errors import EngineOutOfMemory
from earl.obs.metrics import LineFile
from services.scheduler.state.tickets import EpisodeEnding, EpisodeResult

NAME = "endings.jsonl"
OUT_OF_MEMORY = "out_of_memory"
_OUT_OF_MEMORY = f"{EngineOutOfMemory.__name__}:"
# What a line is about, at least.
PERIOD_S = 5.0


class Endings:
    """Writes below `directory`; time is an argument, in seconds since the run began."""

    def __init__(self, directory: Path) -> None:
        self._file = LineFile(directory / NAME)
        self._counts: Counter[str] = Counter()
        # Since this process began.
        self.totals: Counter[str] = Counter()
        self._written_s = 0.0

    def count(self, result: EpisodeResult) -> None:
        """An attempt ended, whether it may be trained or comes to nothing."""
        self._add(result.ending)
        # An error's name precedes its message: see services.rollout.worker.agent.
        if result.message.startswith(_OUT_OF_MEMORY):
            self._add(OUT_OF_MEMORY)

    def write(self, time_s: float) -> None:
        """Writes the counts, if the last line is PERIOD_S old."""
        if time_s - self._written_s >= PERIOD_S:
            self._write(time_s)

    def close(self, time_s: float) -> None:
        """Writes what is left."""
        self._write(time_s)
        self._file.close()

    def _add(self, name: str) -> None:
        self._counts[name] += 1
        self.totals[name] += 1

    def _write(self, time_s: float) -> None:
        if not self._counts:
            return
        names = (*(ending.value for ending in EpisodeEnding), OUT_OF_MEMORY)
        counts = {name: self._counts[name] for name in names}
        if self._file.write({"time_s": round(time_s, 3), **counts}):
            self._counts.clear()
        self._written_s = time_s
