"""Notices of a command while it waits, so that it always shows progress."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

# Seconds between two notices; nobody looks at a still terminal for twice as long.
NOTICE_S = 5.0


def notice(what: str, waited_s: float, most_s: float = 0.0) -> str:
    """A line: what is waited for, for how long, and for how long at most (0: no bound is known)."""
    bound = f" of at most {most_s:.0f} s" if most_s else " s"
    return f"{what}: {waited_s:.0f}{bound}"


@contextmanager
def waiting(
    what: str, most_s: float = 0.0, *, every_s: float = NOTICE_S, file: IO[str] | None = None
) -> Iterator[None]:
    """Writes a notice every few seconds while the block runs. file: standard error if none is given."""
    done = threading.Event()
    began = time.monotonic()

    def tell() -> None:
        stream = file or sys.stderr
        while not done.wait(every_s):
            stream.write(f"{notice(what, time.monotonic() - began, most_s)}\n")
            stream.flush()

    teller = threading.Thread(target=tell, name="notices", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
