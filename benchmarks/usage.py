"""Processor time of a run's processes between two of its training steps, beside what the clock says.

A machine's other load takes turns from a run, so that its tokens per second say little on a shared machine;
what its processes computed for them stays about the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.every import every
from earl.errors import MeasurementWrong
from earl.obs.metrics import read_lines

LOOK_S = 0.5


class Usage:
    """What this process and its children had used when training steps had ended."""

    def __init__(self, directory: Path) -> None:
        self._metrics = directory / "metrics.jsonl"
        # (training steps, seconds of processor time), as looked at.
        self.looks: list[tuple[int, float]] = []

    def look(self) -> None:
        """How far the run is, and what was used for it; processes that end meanwhile are not counted."""
        if not self._metrics.exists():
            return
        steps = sum(one.get("phase") == "train" for one in read_lines(self._metrics))
        own = psutil.Process()
        used = 0.0
        for process in (own, *own.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            used += times.user + times.system
        if steps:
            self.looks.append((steps, used))

    def per_token(self, tokens: list[int]) -> float:
        """Microseconds a token of the steps between the first and the last look at which all still ran.

        tokens: of each training step, in their order. Raises MeasurementWrong if no step was between two.
        """
        whole = [(steps, used) for steps, used in self.looks if steps < len(tokens)]
        if len({steps for steps, _ in whole}) < 2:
            raise MeasurementWrong(
                f"{len(tokens)} training steps were over before they were looked at twice",
                "give more --steps",
            )
        (first, before), (last, after) = whole[0], whole[-1]
        return (after - before) / sum(tokens[first:last]) * 1e6


@contextmanager
def watched(directory: Path) -> Iterator[Usage]:
    """The usage of the run in this directory, looked at every LOOK_S in the block."""
    usage = Usage(directory)
    with every(LOOK_S, usage.look):
        yield usage
