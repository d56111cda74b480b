"""A loop's clock that stands still unless a test moves it: what ends meanwhile ends by an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stopped_clock() -> Iterator[Callable[[float], None]]:
    """The running loop's clock stands still within the block; the value moves it on by so many seconds.

    For a deadline that must pass at one moment and no other, however fast or slow the machine is.
    """
    loop = asyncio.get_running_loop()
    now_s = loop.time()

    def advance(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    loop.time = lambda: now_s
    try:
        yield advance
    finally:
        del loop.time


@contextmanager
def no_deadline() -> Iterator[None]:
    """No timer of the running loop fires within the block, however long the block takes.

    For what must follow from an event at once: were a deadline needed to end it, the block would hang, and
    the test end by its own timeout.
    """
    with stopped_clock():
        yield
