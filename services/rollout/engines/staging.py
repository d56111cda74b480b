"""Weights on their way in: read over the data plane into host buffers, off the compute path.

    load ──► thread with its own event loop ──► Dispatcher.read (this rank's boxes only) ──► staged
    step loop ◄── wake ──┘                                     commit: staged ──► weights, between steps

Buffers are allocated once and used for every version. A read that failed or was dropped leaves
nothing staged; the weights in use are not touched before commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from earl.bus import Bus
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.descriptor import numpy_dtype
from earl.dispatch.dispatcher import Dispatcher, Repeated, VersionRead
from earl.dispatch.registry import Registry
from earl.dispatch.resolve import Form
from earl.errors import EarlError, EngineError, LayoutError, WeightsIncomplete
from earl.models.slices import Own
from services.rollout.engines.base import EngineSpec, LoadReport, Transfer

JOIN_S = 5.0


class Stager:
    """Reads versions for one rank. own: what its parameters are made of; shapes: of published tensors.

    `wake` becomes readable when a load ended; then `take` says how. Used from the step loop's thread.
    """

    def __init__(
        self, spec: EngineSpec, own: Mapping[str, Own], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._spec = spec
        self._own = {name: one for name, one in own.items() if not one.same_as}
        self._shapes = dict(shapes)
        self._buffers: dict[str, np.ndarray] = {}
        # What to read of every version into the buffers; None until they are made.
        self._slices: Repeated | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task | None = None
        self._bus: Bus | None = None
        self._dispatcher: Dispatcher | None = None
        self._finished: list[tuple[int, LoadReport | EarlError]] = []
        self._lock = threading.Lock()
        self._reading = asyncio.Lock()
        self.wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # The version that lies in the buffers whole; None if none does.
        self.staged: int | None = None
        self.dtypes: dict[str, str] = {}
        self.transfers: list[Transfer] = []

    def begin(self, call: int, version: int, keys: Sequence[str], deadline_s: float) -> None:
        """Start reading; a read that is under way is dropped first."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="weights", daemon=True)
            self._thread.start()
        self.staged = None
        created = threading.Event()

        def create(loop: asyncio.AbstractEventLoop) -> None:
            before, self._task = self._task, loop.create_task(self._load(version, tuple(keys), deadline_s))
            if before is not None:
                before.cancel()
            self._task.add_done_callback(lambda task: self._note(call, version, task))
            created.set()

        self._loop.call_soon_threadsafe(create, self._loop)
        created.wait(JOIN_S)

    def take(self) -> list[tuple[int, LoadReport | EarlError]]:
        """(call, report or error) of each load that ended since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        with self._lock:
            finished, self._finished = self._finished, []
        return finished

    def drop(self) -> None:
        """Forget what is staged and stop a read that is under way; its call ends with an error."""
        self.staged = None
        task = self._task
        if task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(task.cancel)

    def tensors(self, version: int) -> dict[str, tuple[np.ndarray, str]]:
        """(array, published dtype's name) by own parameter.

        Raises WeightsIncomplete if `version` is not staged whole.
        """
        if self.staged != version:
            raise WeightsIncomplete(
                f"engine {self._spec.name} has version {self.staged} staged, not {version}",
                "load the version before it is committed",
            )
        return {name: (array, self.dtypes[name]) for name, array in self._buffers.items()}

    def close(self) -> None:
        """Stop the thread."""
        if self._loop is None or self._thread is None:
            return
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        with contextlib.suppress(TimeoutError):
            closing.result(JOIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_S)

    # --- in the thread ------------------------------------------------------------------------

    async def _load(self, version: int, keys: tuple[str, ...], deadline_s: float) -> LoadReport:
        # One at a time: the read before, which was cancelled, may still be letting go of the buffers.
        async with self._reading:
            self.staged = None
            report = await self._read(version, keys, deadline_s)
            self.staged = version
            return report

    def _note(self, call: int, version: int, task: asyncio.Task[LoadReport]) -> None:
        """However a load ends, even before it began, its call gets an outcome."""
        error = None if task.cancelled() else task.exception()
        outcome: LoadReport | EarlError
        if task.cancelled():
            outcome = WeightsIncomplete(f"loading version {version} was dropped", "another update began")
        elif isinstance(error, EarlError):
            outcome = error
        elif error is not None:
            outcome = EngineError(f"loading version {version}: {type(error).__name__}: {error}")
        else:
            outcome = task.result()
        with self._lock:
            self._finished.append((call, outcome))
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"x")

    async def _read(self, version: int, keys: tuple[str, ...], deadline_s: float) -> LoadReport:
        dispatcher = await self._connected()
        slices = self._slices or self._prepare(await dispatcher.describe(keys), keys)
        try:
            receipt = await dispatcher.read([VersionRead(keys, slices)], deadline_s)
        except LayoutError:
            # Published otherwise than before: in another dtype, say, after the trainer was restored.
            slices = self._prepare(await dispatcher.describe(keys), keys)
            receipt = await dispatcher.read([VersionRead(keys, slices)], deadline_s)
        self.transfers = [
            Transfer(
                path=path,
                size_bytes=t.size_bytes,
                seconds=t.seconds,
                transfers=t.transfers,
                retries=t.retries,
            )
            for path, t in dispatcher.totals.items()
        ]
        return LoadReport(version=version, size_bytes=receipt.size_bytes, read_s=receipt.seconds)

    async def _connected(self) -> Dispatcher:
        if self._dispatcher is None:
            if not self._spec.redis_url:
                raise EngineError(f"engine {self._spec.name} was given no Redis", "set EngineSpec.redis_url")
            text = self._spec.data_plane or "{}"
            config = DataPlaneConfig.model_validate_json(text)
            self._bus = await Bus.connect(self._spec.redis_url, self._spec.run)
            registry = Registry(self._bus.redis, self._bus.prefix, config.descriptor_lease_s)
            self._dispatcher = await Dispatcher.create(registry, config)
        return self._dispatcher

    def _prepare(self, forms: Mapping[str, Form], keys: tuple[str, ...]) -> Repeated:
        """Buffers of the published dtypes, and what goes into them.

        Raises LayoutError if the tensors are another model's.
        """
        said: dict[str, str] = {}
        for name, one in self._own.items():
            dtypes = {self._dtype(forms, part.source, keys) for part in one.parts}
            if len(dtypes) > 1:
                raise LayoutError(
                    f"{', '.join(keys)}: parts of {name} are published as {' and '.join(sorted(dtypes))}",
                    "publish all of a version in one dtype",
                )
            said[name] = dtypes.pop()
        self.dtypes = said
        for name, one in self._own.items():
            dtype = numpy_dtype(said[name])
            buffer = self._buffers.get(name)
            if buffer is None or buffer.dtype != dtype:
                # Written once now: the first read would pay for the page faults.
                self._buffers[name] = np.full(one.shape, 0, dtype=dtype)
        self._slices = Repeated(
            (part.source, part.box, self._buffers[name][part.at.slices()])
            for name, one in self._own.items()
            for part in one.parts
        )
        return self._slices

    def _dtype(self, forms: Mapping[str, Form], name: str, keys: tuple[str, ...]) -> str:
        """The dtype in which a tensor is published. Raises LayoutError if it is another model's."""
        form = forms.get(name)
        found = None if form is None else form.shape
        if form is None or found != self._shapes[name]:
            raise LayoutError(
                f"{', '.join(keys)}: {name} has shape {found}, the engine's model {self._shapes[name]}",
                "trainer and engines must be given the same model",
            )
        return form.dtype

    async def _close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._dispatcher is not None:
            await self._dispatcher.close()
        if self._bus is not None:
            await self._bus.close()
