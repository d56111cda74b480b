"""Requests to the trainer for its next step boundary; set from any thread, taken by the loop."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections import deque

from earl.errors import EarlError, WorkerReplaced

log = logging.getLogger(__name__)

# Where all of a run is stopped at once, some are gone before this process gets its signal.
FOLLOWS_S = 5.0
NOTICE_S = 0.05


class StageRequests:
    """Requests to a stage. stop: by SIGTERM, to save and leave. run_ended: by the scheduler's word."""

    def __init__(self, follows_s: float = FOLLOWS_S) -> None:
        self._follows_s = follows_s
        self.stop = threading.Event()
        self.run_ended = threading.Event()
        self._saves: deque[concurrent.futures.Future[tuple[str, int]]] = deque()

    def ignore_if_stopping(self, error: EarlError) -> None:
        """Logs an error of others that are gone, if this process is told to stop, now or within follows_s,
        for which the calling thread waits.

        Raises the error otherwise, and WorkerReplaced always: the successor saves.
        """
        if isinstance(error, WorkerReplaced) or not self._stops_soon():
            raise error
        log.warning("told to stop, and continues without: %s", error)

    def _stops_soon(self) -> bool:
        # Not stop.wait: the signal's handler, which sets it, runs on the thread that would wait.
        until_s = time.monotonic() + self._follows_s
        while not self.stop.is_set() and time.monotonic() < until_s:
            time.sleep(NOTICE_S)
        return self.stop.is_set()

    def save(self) -> concurrent.futures.Future[tuple[str, int]]:
        """Asks for a checkpoint; the future gets its path and version."""
        future: concurrent.futures.Future[tuple[str, int]] = concurrent.futures.Future()
        self._saves.append(future)
        return future

    @property
    def wants_save(self) -> bool:
        return bool(self._saves)

    def saved(self, path: str, version: int) -> None:
        """Answers all who asked for a checkpoint."""
        while self._saves:
            future = self._saves.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result((path, version))
