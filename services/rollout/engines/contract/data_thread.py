"""A rank's side of the data plane: a thread with an event loop, off the compute path.

    step loop ── start(call, work) ──► thread's loop: Dispatcher, Registry ──► outcome of the call
              ◄── wake, take ───────────────────────────────────────────────────┘

Every call gets an outcome, however its work ends. The thread begins with the first call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from earl.bus import Bus
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.read.reader import Dispatcher
from earl.dispatch.registry.registry import Registry
from earl.dispatch.transport.shm import SharedMemory
from earl.errors import BusUnavailable, EarlError, EngineError, RegistryUnavailable
from earl.worker_report import TransferTotals, totals_by_path
from services.rollout.engines.contract.engine import EngineSpec

JOIN_S = 5.0
T = TypeVar("T")


class DataThread:
    """Runs one rank's reads and writes of the data plane. `wake` becomes readable when a call has ended; then
    `take` returns its outcome.

    Used from the step loop's thread, except the methods under "in the thread".
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self.config = DataPlaneConfig.model_validate_json(spec.data_plane or "{}")
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task] = set()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._bus: Bus | None = None
        self._registry: Registry | None = None
        self._dispatcher: Dispatcher | None = None
        # What the step loop's thread copied itself, out of mapped arenas.
        self._mapped = TransferTotals(path=SharedMemory.path)
        self._finished: list[tuple[int, Any]] = []
        self._lock = threading.Lock()
        self.wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def start(self, call: int, work: Coroutine[Any, Any, Any], what: str, dropped: EarlError) -> asyncio.Task:
        """Runs `work` in the thread; returns its task, for `cancel`.

        what: the call in words, for errors. dropped: the outcome if it is cancelled. Raises EngineError if
        the thread does not start it within JOIN_S.
        """
        running = self._running_loop()
        created = threading.Event()
        tasks: list[asyncio.Task] = []

        def create(loop: asyncio.AbstractEventLoop) -> None:
            task = loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._note(call, task, what, dropped))
            tasks.append(task)
            created.set()

        running.call_soon_threadsafe(create, running)
        if not created.wait(JOIN_S):
            raise EngineError(f"engine {self._spec.name}: its data plane is stuck for {JOIN_S:g} s")
        return tasks[0]

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` in the thread, for a caller with a loop of its own; cancelling the call cancels it."""

        async def noted() -> T:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                return await work
            finally:
                self._tasks.discard(task)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(noted(), self._running_loop()))

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """The thread's loop; starts the thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="data plane", daemon=True)
            self._thread.start()
        return self._loop

    def cancel(self, task: asyncio.Task) -> None:
        """Cancels a task: its call ends with the error that `start` was given for that. Work that is started
        later begins after the cancellation was requested."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(task.cancel)

    def take(self) -> list[tuple[int, Any]]:
        """(call, result or EarlError) of each call that ended since the last time."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        with self._lock:
            finished, self._finished = self._finished, []
        return finished

    @property
    def transfers(self) -> list[TransferTotals]:
        """Totals of what was read, by path of the data plane."""
        # The thread that reads adds to them meanwhile; what is not in yet comes with the next report.
        read = [] if self._dispatcher is None else list(self._dispatcher.totals.values())
        return totals_by_path([*read, self._mapped] if self._mapped.transfers else read)

    def note_mapped(self, size_bytes: int, seconds: float) -> None:
        """Counts what was copied out of mapped arenas, without a read."""
        self._mapped.size_bytes += size_bytes
        self._mapped.seconds += seconds
        self._mapped.transfers += 1

    def close(self) -> None:
        """Stops the thread and what runs in it."""
        if self._loop is None or self._thread is None:
            return
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        with contextlib.suppress(TimeoutError):
            closing.result(JOIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_S)

    # --- in the thread ------------------------------------------------------------------------

    async def registry(self) -> Registry:
        """Raises EngineError if the engine was given no Redis, RegistryUnavailable."""
        if self._registry is None:
            if not self._spec.redis_url:
                raise EngineError(f"engine {self._spec.name} was given no Redis", "set EngineSpec.redis_url")
            try:
                self._bus = await Bus.connect(self._spec.redis_url, self._spec.run)
            except BusUnavailable as error:
                raise RegistryUnavailable(error.message, error.remedy) from error
            self._registry = Registry(self._bus.redis, self._bus.prefix, self.config.descriptor_lease_s)
        return self._registry

    async def dispatcher(self) -> Dispatcher:
        """Raises EngineError if the engine was given no Redis, TransportUnavailable."""
        if self._dispatcher is None:
            self._dispatcher = await Dispatcher.create(await self.registry(), self.config)
        return self._dispatcher

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Registers what `close` awaits before it closes the connections."""
        self._closers.append(closer)

    def _note(self, call: int, task: asyncio.Task, what: str, dropped: EarlError) -> None:
        """Records the outcome of a task's call, however the task ended, even if it never began."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            outcome = dropped
        elif isinstance(error, EarlError):
            outcome = error
        elif error is not None:
            outcome = EngineError(f"{what}: {type(error).__name__}: {error}")
        else:
            outcome = task.result()
        with self._lock:
            self._finished.append((call, outcome))
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"x")

    async def _close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for closer in self._closers:
            await closer()
        if self._dispatcher is not None:
            await self._dispatcher.close()
        if self._bus is not None:
            await self._bus.close()
