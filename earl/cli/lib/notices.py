"""Notices of a command while it waits, so that it always shows progress."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

# Seconds between two notices; nobody looks at a still terminal for twice as long.
NOTICE_S = 5.0


def notice(what: str, waited_s: float, most_s: float = 0.0, done: int = 0, total: int = 0) -> str:
    """A line: what is waited for, for how long, how far it is and how long it will still take.

    done, total: 0 where nothing is counted. most_s: the longest it may take, 0 without a bound.
    """
    if 0 < done < total:
        left_s = waited_s * (total - done) / done
        left_s = min(left_s, max(0.0, most_s - waited_s)) if most_s else left_s
        return f"{what}: {done:,} of {total:,} in {waited_s:.0f} s, about {left_s:.0f} s left"
    bound = f" of at most {most_s:.0f} s" if most_s else " s"
    return f"{what}: {waited_s:.0f}{bound}"


@contextmanager
def waiting(
    what: str,
    most_s: float = 0.0,
    *,
    progress: Callable[[], tuple[int, int]] = lambda: (0, 0),
    every_s: float = NOTICE_S,
    file: IO[str] | None = None,
) -> Iterator[None]:
    """Writes a notice every few seconds while the block runs.

    progress: called in another thread, returns (done, total) of what the block counts. file: standard error
    if none is given.
    """
    ended = threading.Event()
    began = time.monotonic()

    def tell() -> None:
        stream = file or sys.stderr
        while not ended.wait(every_s):
            stream.write(f"{notice(what, time.monotonic() - began, most_s, *progress())}\n")
            stream.flush()

    teller = threading.Thread(target=tell, name="notices", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
