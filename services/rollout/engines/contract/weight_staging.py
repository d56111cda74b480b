"""New weights: read over the data plane into host buffers, off the compute path.

    load ──► the data plane's thread ──► Dispatcher.read (this rank's boxes only) ──► staged
    step loop ◄── wake ──┘                              commit: staged ──► weights, between steps

Buffers are allocated once and used for every version. A read that failed or was dropped leaves
nothing staged; the weights in use are not touched before commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np

from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.read.reader import Repeated, VersionRead
from earl.dispatch.read.resolve import Form
from earl.errors import LayoutError, WeightsIncomplete
from earl.models.slices import RankParameter
from services.rollout.engines.contract.data_thread import DataThread
from services.rollout.engines.contract.engine import EngineSpec, LoadReport


class WeightStager:
    """Reads versions for one rank.

    parameters: which slices of published tensors each of the rank's parameters is made of; shapes: of the
    published tensors. The outcome of a load's call is a LoadReport or an EarlError. Used from the step loop's
    thread.
    """

    def __init__(
        self,
        spec: EngineSpec,
        data: DataThread,
        parameters: Mapping[str, RankParameter],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._spec, self._data = spec, data
        self._parameters = {name: sliced for name, sliced in parameters.items() if not sliced.same_as}
        self._shapes = dict(shapes)
        self._buffers: dict[str, np.ndarray] = {}
        # What to read of every version into the buffers; None until they are made.
        self._slices: Repeated | None = None
        self._task: asyncio.Task | None = None
        self._reading = asyncio.Lock()
        # The version that is in the buffers completely; None if none is.
        self.staged: int | None = None
        self.dtypes: dict[str, str] = {}

    def begin(self, call: int, version: int, keys: Sequence[str], deadline_s: float) -> None:
        """Starts reading; a read in progress is dropped first."""
        self.drop()
        self._task = self._data.start(
            call,
            self._load(version, tuple(keys), deadline_s),
            f"loading version {version}",
            WeightsIncomplete(f"loading version {version} was dropped", "another update began"),
        )

    def drop(self) -> None:
        """Forgets what is staged and stops a read in progress; its call ends with an error."""
        self.staged = None
        if self._task is not None:
            self._data.cancel(self._task)

    def tensors(self, version: int) -> dict[str, tuple[np.ndarray, str]]:
        """(array, published dtype's name) by parameter of this rank.

        Raises WeightsIncomplete if `version` is not staged completely.
        """
        if self.staged != version:
            raise WeightsIncomplete(
                f"engine {self._spec.name} has version {self.staged} staged, not {version}",
                "load the version before it is committed",
            )
        return {name: (array, self.dtypes[name]) for name, array in self._buffers.items()}

    # --- in the thread ------------------------------------------------------------------------

    async def _load(self, version: int, keys: tuple[str, ...], deadline_s: float) -> LoadReport:
        # One at a time: the read before, which was cancelled, may still write into the buffers.
        async with self._reading:
            self.staged = None
            report = await self._read(version, keys, deadline_s)
            self.staged = version
            return report

    async def _read(self, version: int, keys: tuple[str, ...], deadline_s: float) -> LoadReport:
        dispatcher = await self._data.dispatcher()
        slices = self._slices or self._prepare(await dispatcher.describe(keys), keys)
        try:
            receipt = await dispatcher.read([VersionRead(keys, slices)], deadline_s)
        except LayoutError:
            # Published in another dtype than before, perhaps since the trainer was restored.
            slices = self._prepare(await dispatcher.describe(keys), keys)
            receipt = await dispatcher.read([VersionRead(keys, slices)], deadline_s)
        return LoadReport(version=version, size_bytes=receipt.size_bytes, read_s=receipt.seconds)

    def _prepare(self, forms: Mapping[str, Form], keys: tuple[str, ...]) -> Repeated:
        """Makes buffers of the published dtypes; returns what is to be read into them.

        Raises LayoutError if the tensors are another model's.
        """
        published: dict[str, str] = {}
        for name, sliced in self._parameters.items():
            dtypes = {self._dtype(forms, part.source, keys) for part in sliced.parts}
            if len(dtypes) > 1:
                raise LayoutError(
                    f"{', '.join(keys)}: parts of {name} are published as {' and '.join(sorted(dtypes))}",
                    "publish all of a version in one dtype",
                )
            published[name] = dtypes.pop()
        self.dtypes = published
        for name, sliced in self._parameters.items():
            dtype = numpy_dtype(published[name])
            buffer = self._buffers.get(name)
            if buffer is None or buffer.dtype != dtype:
                # Written once now: the first read would pay for the page faults.
                self._buffers[name] = np.full(sliced.shape, 0, dtype=dtype)
        self._slices = Repeated(
            (part.source, part.box, self._buffers[name][part.target.slices()])
            for name, sliced in self._parameters.items()
            for part in sliced.parts
        )
        return self._slices

    def _dtype(self, forms: Mapping[str, Form], name: str, keys: tuple[str, ...]) -> str:
        """The dtype in which a tensor is published. Raises LayoutError if it is another model's."""
        form = forms.get(name)
        shape = None if form is None else form.shape
        if form is None or shape != self._shapes[name]:
            raise LayoutError(
                f"{', '.join(keys)}: {name} has shape {shape}, the engine's model {self._shapes[name]}",
                "trainer and engines must be given the same model",
            )
        return form.dtype
