"""Notices of a command while it waits, so that it always shows progress."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

# Seconds between two notices; nobody looks at a still terminal for twice as long.
NOTICE_S = 5.0


def notice(
    what: str, waited_s: float, most_s: float = 0.0, done: int = 0, total: int = 0, done_s: float = 0.0
) -> str:
    """A line: what is waited for, for how long, how far it is and how long it will still take.

    done, total: 0 where nothing is counted. most_s: the longest it may take, 0 without a bound. done_s: the
    seconds after which the last of `done` was done, 0 for just now.
    """
    if not 0 <= done < total:
        bound = f" of at most {most_s:.0f} s" if most_s else " s"
        return f"{what}: {waited_s:.0f}{bound}"
    line = f"{what}: {done:,} of {total:,} in {waited_s:.0f} s"
    bound_s = max(0.0, most_s - waited_s)
    if not done:
        return f"{line}, at most {bound_s:.0f} s left" if most_s else line
    done_s = done_s or waited_s
    left_s = max(0.0, done_s * (total - done) / done - (waited_s - done_s))
    return f"{line}, about {min(left_s, bound_s) if most_s else left_s:.0f} s left"


def nothing_counted() -> tuple[int, int]:
    """The progress of a block that counts nothing."""
    return 0, 0


@dataclass(slots=True)
class Count:
    """The progress of a block that counts: the block writes it, its notices read it in another thread."""

    done: int = 0
    total: int = 0

    def __call__(self) -> tuple[int, int]:
        return self.done, self.total


@contextmanager
def repeating(
    line: Callable[[], str], *, every_s: float = NOTICE_S, file: IO[str] | None = None
) -> Iterator[None]:
    """Writes a line every few seconds while the block runs, from a thread that sleeps in between.

    line: called in that thread; nothing is written for "". file: standard error if none is given.
    """
    ended = threading.Event()

    def tell() -> None:
        stream = file or sys.stderr
        while not ended.wait(every_s):
            if text := line():
                stream.write(f"{text}\n")
                stream.flush()

    teller = threading.Thread(target=tell, name="notices", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


@contextmanager
def waiting(
    what: str,
    most_s: float = 0.0,
    *,
    progress: Callable[[], tuple[int, int]] = nothing_counted,
    every_s: float = NOTICE_S,
    file: IO[str] | None = None,
) -> Iterator[None]:
    """Writes a notice every few seconds while the block runs.

    progress: called in another thread, returns (done, total) of what the block counts. file: standard error
    if none is given.
    """
    began = time.monotonic()
    last = (0, 0.0)  # what was done, and the seconds after which

    def line() -> str:
        nonlocal last
        waited_s = time.monotonic() - began
        done, total = progress()
        if done != last[0]:
            last = (done, waited_s)
        return notice(what, waited_s, most_s, done, total, last[1])

    with repeating(line, every_s=every_s, file=file):
        yield
