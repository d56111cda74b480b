"""Processes that are ready for a pool's next engines: their imports are done, and they have nothing else.

They import at low priority, so that engines that generate keep their cores. One that has not finished is not
taken: an engine that is needed now starts its processes at the usual priority.

Most of the time until a new engine answers is spent on its imports. With as many processes ready as the pool
has devices, any parallelism can be started without them. They wait without using a core; one takes about as
much memory as torch's own modules.
"""

from __future__ import annotations

import asyncio
import logging

from earl.errors import DeadlineExceeded
from earl.waiting import deadline
from services.rollout.engines.process.rank_process import EngineRankProcess, RankKind

log = logging.getLogger(__name__)


class StandbyProcesses:
    """Keeps up to `count` processes of one kind ready."""

    def __init__(self, kind: RankKind, count: int) -> None:
        self._kind, self.count = kind, count
        self._ready: list[EngineRankProcess] = []
        self._filling: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Process ids of those that wait."""
        return [process.process.pid for process in self._ready if process.waits]

    def take(self, kind: RankKind) -> EngineRankProcess | None:
        """The process that has waited longest, if one of this kind is ready; None otherwise."""
        for process in list(self._ready if kind == self._kind else ()):
            if not process.waits:
                log.warning("process %d, kept ready for an engine, has ended", process.process.pid)
                self._ready.remove(process)
            elif process.ready:
                self._ready.remove(process)
                return process
        return None

    def fill(self) -> None:
        """Begins to start those that are missing, in the background."""
        if not self._closed and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self._fill(), name="standby processes")

    async def filled(self, deadline_s: float) -> None:
        """Returns once those that were begun wait, their imports done. Raises DeadlineExceeded."""
        late = DeadlineExceeded(f"processes are not ready for engines after {deadline_s:g} s", "see the log")
        async with deadline(deadline_s, late):
            if self._filling is not None:
                await asyncio.shield(self._filling)
            await asyncio.gather(*(process.imported() for process in self._ready if process.waits))

    async def _fill(self) -> None:
        self._ready = [process for process in self._ready if process.waits]
        while len(self._ready) < self.count:
            try:
                self._ready.append(await EngineRankProcess.start(self._kind, ahead=True))
            except OSError as error:
                # Engines are then started anew, and fail with their own error if that is not possible either.
                log.warning("no process could be started to be kept ready: %s", error)
                return

    async def close(self) -> None:
        """Ends all that wait. Idempotent."""
        self._closed = True
        if self._filling is not None:
            await asyncio.gather(self._filling, return_exceptions=True)
        ready, self._ready = self._ready, []
        await asyncio.gather(*(process.end() for process in ready))
