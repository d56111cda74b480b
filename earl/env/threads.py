"""Threads for blocking environments: one slow step delays nobody else, and a stuck one delays no exit.

The standard executor joins its threads when the interpreter ends; an environment that never returns
would then hold the process for ever. These are daemon threads, made when no idle one is left.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

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
        """Run `job` soon."""
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

    def _work(self, job: _Job | None) -> None:
        while job is not None:
            job()
            with self._lock:
                self._idle += 1
            job = self._jobs.get()

    def close(self) -> None:
        """Let idle threads end; those that run a job end after it, or with the process."""
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._jobs.put(None)
