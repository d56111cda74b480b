"""endings.jsonl: how episodes ended, over the run's time; what failed and was tried again is counted too.

A line is some seconds in which episodes ended: time_s at their end, and a count by ending. Some of those
of infra_error are counted as out_of_memory besides: their engine was lost to it. A match of self-play is one
episode. In a mixture `environments` has the same counts by label. The sums over all lines are those of the
run: nothing is taken back with a step that is rolled back. What ended in the seconds before a scheduler was
killed is in no line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from earl.errors import EngineOutOfMemory, OutOfMemory
from earl.obs.metrics import LineFile
from services.scheduler.state.tickets import EpisodeEnding, EpisodeResult

NAME = "endings.jsonl"
OUT_OF_MEMORY = "out_of_memory"
_OUT_OF_MEMORY = tuple(f"{error.__name__}:" for error in (EngineOutOfMemory, OutOfMemory))
# What a line is about, at least.
PERIOD_S = 5.0


class Endings:
    """Writes below `directory`; time is an argument, in seconds since the run began."""

    def __init__(self, directory: Path) -> None:
        self._file = LineFile(directory / NAME)
        # By the label of the environment, "" in a run that has only one; since the last line.
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        # Since this process began, until the last line.
        self._written: Counter[str] = Counter()
        self._written_s = 0.0

    def count(self, result: EpisodeResult, environment: str = "") -> None:
        """An attempt at an episode ended, whether it may be trained or comes to nothing.

        environment: its label; "" in a run that has only one.
        """
        counts = self._counts[environment]
        counts[result.ending] += 1
        # An error's name precedes its message: see services.rollout.worker.agent.
        if result.message.startswith(_OUT_OF_MEMORY):
            counts[OUT_OF_MEMORY] += 1

    @property
    def totals(self) -> Counter[str]:
        """Attempts by ending, since this process began."""
        return self._written + self._unwritten

    def write(self, time_s: float) -> None:
        """Writes the counts, if the last line is PERIOD_S old."""
        if time_s - self._written_s >= PERIOD_S:
            self._write(time_s)

    def close(self, time_s: float) -> None:
        """Writes what is left."""
        self._write(time_s)
        self._file.close()

    def _write(self, time_s: float) -> None:
        if not self._counts:
            return
        unwritten = self._unwritten
        line: dict[str, object] = {"time_s": round(time_s, 3), **_all(unwritten)}
        labels = {label: _all(counts) for label, counts in self._counts.items() if label}
        if labels:
            line["environments"] = labels
        if self._file.write(line):
            self._written += unwritten
            self._counts.clear()
        self._written_s = time_s

    @property
    def _unwritten(self) -> Counter[str]:
        return sum(self._counts.values(), Counter())


def _all(counts: Counter[str]) -> dict[str, int]:
    """The count of every ending, also of those that there were none of."""
    return {name: counts[name] for name in (*(ending.value for ending in EpisodeEnding), OUT_OF_MEMORY)}
