"""What others want of the trainer at its next step boundary; set from any thread, taken by the loop."""

from __future__ import annotations

import concurrent.futures
import threading
from collections import deque


class Requests:
    """stop: SIGTERM came, save and leave. over: the scheduler says that the run is done."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.over = threading.Event()
        self._saves: deque[concurrent.futures.Future[tuple[str, int]]] = deque()

    def save(self) -> concurrent.futures.Future[tuple[str, int]]:
        """Ask for a checkpoint; the future gets its path and version."""
        future: concurrent.futures.Future[tuple[str, int]] = concurrent.futures.Future()
        self._saves.append(future)
        return future

    @property
    def wants_save(self) -> bool:
        return bool(self._saves)

    def saved(self, path: str, version: int) -> None:
        """Answer all who asked for a checkpoint."""
        while self._saves:
            future = self._saves.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result((path, version))
