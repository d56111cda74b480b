"""Notices of a benchmark on a terminal: its phase, for how long, and how far it is where that is counted.

    phase("make demo (3 of 4)")           ─► earl bench newcomer, make demo (3 of 4): 42 s
    for size in counted("batches", sizes) ─► earl bench engine, batches: 1 of 3 in 80 s, about 160 s left

A thread of the command's own process writes them to standard error and sleeps in between. Where standard
error is no terminal there is no thread. The processes that a benchmark starts and measures have none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import IO, TypeVar

from earl.cli.lib.notices import NOTICE_S, notice, repeating

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a benchmark. began_s, done_s: of the clock, when it began and when `done` last changed."""

    text: str
    began_s: float
    done_s: float
    done: int = 0
    total: int = 0


class Progress:
    """The phase that a benchmark is in. clock: monotonic, in seconds.

    The benchmark replaces the phase in one assignment, so that another thread may read it at any time.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock = name, clock
        self._phase = Phase("", clock(), clock())
        # The block in progress draws a view of its own.
        self.hushed = False

    def enter(self, text: str, done: int = 0, total: int = 0) -> None:
        """Takes note of a phase, or of how far the phase of this text is."""
        now, last = self._clock(), self._phase
        if text != last.text:
            self._phase = Phase(text, now, now, done, total)
        elif (done, total) != (last.done, last.total):
            self._phase = replace(last, done_s=now, done=done, total=total)

    def line(self) -> str:
        phase = self._phase
        what = f"earl bench {self._name}{f', {phase.text}' if phase.text else ''}"
        waited_s, done_s = self._clock() - phase.began_s, phase.done_s - phase.began_s
        return notice(what, waited_s, 0.0, phase.done, phase.total, done_s)


IN_PROGRESS: ContextVar[Progress | None] = ContextVar("progress of the benchmark in progress", default=None)


def phase(text: str, done: int = 0, total: int = 0) -> None:
    """Takes note of what the benchmark in progress does now. done, total: of what the phase counts."""
    progress = IN_PROGRESS.get()
    if progress is not None:
        progress.enter(text, done, total)


def counted(text: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yields the items; `text` is the phase meanwhile, with how many of them are done."""
    for number, item in enumerate(items):
        phase(text, number, len(items))
        yield item


@contextmanager
def view_drawn() -> Iterator[None]:
    """Leaves the terminal to the block, which shows itself how far it is; the phase is written before."""
    progress = IN_PROGRESS.get()
    if progress is None:
        yield
        return
    if sys.stderr.isatty():
        sys.stderr.write(f"{progress.line()}\n")
    progress.hushed = True
    try:
        yield
    finally:
        progress.hushed = False


@contextmanager
def notices_shown(
    progress: Progress, *, every_s: float = NOTICE_S, file: IO[str] | None = None
) -> Iterator[None]:
    """Makes `progress` that of the benchmark in progress, and writes its notices where there is a terminal.

    file: standard error if none is given.
    """

    def line() -> str:
        return "" if progress.hushed else progress.line()

    token = IN_PROGRESS.set(progress)
    terminal = (file or sys.stderr).isatty()
    try:
        with repeating(line, every_s=every_s, file=file) if terminal else nullcontext():
            yield
    finally:
        IN_PROGRESS.reset(token)
