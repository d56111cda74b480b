"""Work that is repeated during a measurement."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def every(period_s: float, work: Callable[[], None], end_s: float = 10.0) -> Iterator[None]:
    """Calls `work` in a thread of its own, period_s after the call before, until the block ends.

    end_s: what the last call may take then; TimeoutError if it takes longer. What a call raises ends them,
    and is raised at the block's end.
    """
    stop = threading.Event()

    def send_next() -> None:
        while not stop.wait(period_s):
            work()

    pool = ThreadPoolExecutor(1)
    going = pool.submit(send_next)
    try:
        yield
    finally:
        stop.set()
        pool.shutdown(wait=False)
    going.result(end_s)
