"""Threads for blocking environments: one slow step delays nobody else, and a stuck one delays no exit.

The standard executor joins its threads when the interpreter ends; an environment that never returns
would then hold the process forever. These are daemon threads, made when no idle one is left.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

_Job = Callable[[], None]


class DaemonThreads:
    """Runs jobs at once, each in a thread of its own; threads are kept for later jobs.

    The number of threads is bounded by the number of jobs that run at one time. A job must not raise.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Threads that wait for a job, less the jobs that wait for them.
        self._idle = 0
        self._made = 0

    def submit(self, job: _Job) -> None:
        """Runs `job` in a thread, soon."""
        with self._lock:
            self._idle -= 1
            make = self._idle < 0
            if make:
                self._idle += 1
                self._made += 1
        if make:
            thread = threading.Thread(target=self._work, args=(job,), daemon=True)
            thread.name = f"{self._name}-{self._made}"
            thread.start()
        else:
            self._jobs.put(job)

    def call(self, function: Callable[[], Any], left: Callable[[int], None] | None = None) -> Any:
        """Runs `function` in a thread; an asyncio.Future of what it returns or raises.

        A future that is cancelled leaves its thread behind: `left` is called with 1, and with -1 once
        the function has ended after all. To be called on a running loop.
        """
        return _Call(function, left).begun(self)

    def _work(self, job: _Job | None) -> None:
        while job is not None:
            job()
            with self._lock:
                self._idle += 1
            job = self._jobs.get()

    def close(self) -> None:
        """Lets idle threads end; one that runs a job ends after it, or with the process."""
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._jobs.put(None)


class _Call:
    """One function in a thread, and the future that waits for it on the loop."""

    def __init__(self, function: Callable[[], Any], left: Callable[[int], None] | None) -> None:
        self._function = function
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self._loop.create_future()
        self._ended = self._abandoned = False

    def begun(self, threads: DaemonThreads) -> asyncio.Future[Any]:
        self._future.add_done_callback(self._settled)
        threads.submit(self._run)
        return self._future

    def _run(self) -> None:
        value, error = None, None
        try:
            value = self._function()
        except StopIteration as stop:  # no future can carry it
            error = RuntimeError(f"raised {stop!r}")
        except BaseException as raised:  # noqa: BLE001 - handed to the awaiter of the call
            error = raised
        try:
            self._loop.call_soon_threadsafe(partial(self._end, value, error))
        except RuntimeError:
            return  # the loop has ended, and with it the awaiter

    def _end(self, value: Any, error: BaseException | None) -> None:
        self._ended = True
        if self._abandoned and self._left is not None:
            self._left(-1)
        if self._future.done():
            return
        if error is None:
            self._future.set_result(value)
        else:
            self._future.set_exception(error)

    def _settled(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled() and not self._ended:
            self._abandoned = True
            if self._left is not None:
                self._left(1)


_SHARED = DaemonThreads("environment-call")


def in_thread(function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    """`Environment.in_thread` of an environment that no host runs."""
    return _SHARED.call(partial(function, *arguments))
