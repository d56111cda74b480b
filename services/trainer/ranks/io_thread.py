"""A rank's I/O: one event loop on a thread of its own, so that compute never delays an RPC.

    main thread (compute) ── submit / run ──► loop thread (RPC, bus, reads, descriptors' leases)

Promise: `run` returns, raises what the coroutine raised, or ends with DeadlineExceeded; a background
task that fails is raised by the next `check`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from earl.errors import DeadlineExceeded
from earl.rpc.main import loop_factory

T = TypeVar("T")

CLOSE_S = 10.0
# What others are still waited for once they are asked in a hurry, and how soon the hurry is noticed.
HURRY_S = 3.0
NOTICE_S = 0.05


class IoThread:
    """An event loop on a thread of its own, started at once and ended by `close`.

    outage_s: how much longer than on a network that works what needs the bus may take (bus.outage_s).
    """

    def __init__(self) -> None:
        self.outage_s = 0.0
        self._loop = loop_factory()()
        self._background: list[concurrent.futures.Future] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="io", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts it on the loop; from any thread but the loop's own."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float, hurry: threading.Event | None = None) -> T:
        """The result of a coroutine, waited for timeout_s at most, and for HURRY_S once `hurry` is set.

        Raises what the coroutine raised; DeadlineExceeded if it did not end in time, and was cancelled.
        """
        return self.wait(self.submit(work), getattr(work, "__qualname__", "work"), timeout_s, hurry)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float, hurry: threading.Event | None = None) -> T:
        """`run` for what needs the bus: an outage of it is waited for besides."""
        return self.run(work, timeout_s + self.outage_s, hurry)

    def wait(
        self,
        future: concurrent.futures.Future[T],
        name: str,
        timeout_s: float,
        hurry: threading.Event | None = None,
    ) -> T:
        """The result of what was submitted, waited for as in `run`. name: for the error."""
        now_s = time.monotonic()
        ends_s, bound = now_s + timeout_s, f"within {timeout_s:g} s"
        while not future.done() and now_s < ends_s:
            if hurry is not None and hurry.is_set():
                ends_s, bound = min(ends_s, now_s + HURRY_S), f"within {HURRY_S:g} s of the request to stop"
                hurry = None
            until_s = ends_s if hurry is None else min(ends_s, now_s + NOTICE_S)
            concurrent.futures.wait([future], until_s - now_s)
            now_s = time.monotonic()
        if future.done():
            return future.result()
        future.cancel()
        raise DeadlineExceeded(f"{name} did not end {bound}", "see the trainer's log")

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts background work; `check` raises its failure."""
        self._background.append(self.submit(work))

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts background work, from the loop; `check` raises its failure."""
        failed: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._background.append(failed)
        task = self._loop.create_task(work)

        def ended(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                failed.set_exception(error)

        task.add_done_callback(ended)

    def check(self) -> None:
        """Raises the failure of a background task, if one failed."""
        for future in self._background:
            if future.done() and not future.cancelled():
                error = future.exception()
                if error is not None:
                    raise error

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """Cancels what still runs and ends the thread. Idempotent, bounded."""
        if self._loop.is_closed():
            return
        try:
            self.run(_cancel_all(), CLOSE_S)
        except DeadlineExceeded:
            pass  # a task refuses to be cancelled: the daemon thread ends with the process
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
