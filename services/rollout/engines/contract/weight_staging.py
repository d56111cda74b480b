"""New weights: found in shared memory, off the compute path, and applied from where they lie.

    load ──► the data plane's thread ──► Dispatcher.map (this rank's boxes only) ──► staged
    step loop ◄── wake ──┘               commit: mapped arenas ──► weights, between steps ──► confirm

A version is staged when every byte of this rank's slices is known by its place in an arena that is mapped
here. No copy is kept: engines of one host apply a version from the same memory. Its owner may use that memory
again once readers' leases have ended, so what was applied counts only if it is confirmed afterwards; the
weights in use are not touched before commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.memory.arena import MappedArena
from earl.dispatch.read.mapped_version import MappedVersion, Outline
from earl.dispatch.read.reader import Repeated, VersionRead
from earl.dispatch.read.resolve import Form
from earl.dispatch.registry.registry import WEIGHTS_PREFIX
from earl.errors import LayoutError, WeightsIncomplete
from earl.models.slices import RankParameter
from services.rollout.engines.contract.data_thread import DataThread
from services.rollout.engines.contract.engine import EngineSpec, LoadReport

_COPY = "copy-"


def copy_key(version: int, owner: str) -> str:
    """The registry key of a worker's copy of a version (host_copy.py)."""
    return f"{WEIGHTS_PREFIX}{version}/{_COPY}{owner}"


def _is_copy(key: str) -> bool:
    return key.rpartition("/")[2].startswith(_COPY)


@dataclass(frozen=True, slots=True)
class StagedCopy:
    """`rows` runs of `run` bytes that lie `stride` apart in memory from byte `start` on, and belong into a
    parameter from its byte `offset` on, `target_stride` apart."""

    parameter: str
    start: int
    stride: int
    rows: int
    run: int
    offset: int
    target_stride: int


@dataclass(frozen=True, slots=True, eq=False)
class StagedVersion:
    """A version that can be applied. dtypes: as published, by parameter; shapes: of this rank's slices."""

    version: int
    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    outline: Outline
    mapped: MappedVersion
    # The worker read it over the wire, where its bytes were counted.
    copied: bool = False

    @property
    def size_bytes(self) -> int:
        return self.mapped.size_bytes

    def copies(self) -> Iterator[tuple[MappedArena, Iterator[StagedCopy]]]:
        """The copies that fill every parameter exactly once, by the arena that they are out of."""
        for part in self.mapped.parts:
            yield part.arena, (copy for pieces in part.pieces for copy in self._copies(pieces))

    def _copies(self, pieces) -> Iterator[StagedCopy]:
        columns = (pieces.start, pieces.stride, pieces.rows, pieces.run, pieces.target_stride)
        rows = zip(self.outline.places(pieces), *(column.tolist() for column in columns), strict=True)
        for (parameter, offset), start, stride, count, run, target_stride in rows:
            yield StagedCopy(parameter, start, stride, count, run, offset, target_stride)

    def tensors(self) -> Iterator[tuple[str, np.ndarray, str]]:
        """(name, array, published dtype's name) of each parameter: where it lies, if it lies there whole,
        else gathered into memory of its own. Arrays are only to be read, before `confirm`."""
        copies: dict[str, list[tuple[np.ndarray, StagedCopy]]] = {}
        for arena, some in self.copies():
            for copy in some:
                copies.setdefault(copy.parameter, []).append((arena.memory, copy))
        for name, shape in self.shapes.items():
            dtype = numpy_dtype(self.dtypes[name])
            some = copies.get(name, [])
            memory, first = _whole(some)
            if memory is not None:
                yield name, np.ndarray(shape, dtype, memory, first), self.dtypes[name]
                continue
            array = np.empty(shape, dtype)
            for memory, copy in some:
                _gather(memory, copy, array)
            yield name, array, self.dtypes[name]

    def confirm(self) -> None:
        """Returns if what was read until now is the version. Raises VersionGone, ChecksumMismatch."""
        self.mapped.confirm()


def _whole(copies: Sequence[tuple[np.ndarray, StagedCopy]]) -> tuple[np.ndarray | None, int]:
    """(memory, first byte) of a parameter that lies there as it is wanted; (None, 0) if it does not."""
    firsts = {copy.start - copy.offset for _, copy in copies}
    memories = {id(memory) for memory, _ in copies}
    alike = all(copy.rows == 1 or copy.stride == copy.target_stride for _, copy in copies)
    if len(firsts) != 1 or len(memories) != 1 or not alike:
        return None, 0
    return copies[0][0], firsts.pop()


def _gather(memory: np.ndarray, copy: StagedCopy, array: np.ndarray) -> None:
    flat = array.reshape(-1).view(np.uint8)
    shape = (copy.rows, copy.run)
    target = np.ndarray(shape, np.uint8, flat, copy.offset, (copy.target_stride, 1))
    np.copyto(target, np.ndarray(shape, np.uint8, memory, copy.start, (copy.stride, 1)))


class WeightStager:
    """Finds versions for one rank.

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
        self._dtypes: dict[str, str] = {}
        # What to read of every version, and for which parameters; None until the dtypes are known.
        self._slices: tuple[Outline, Repeated] | None = None
        self._task: asyncio.Task | None = None
        self._reading = asyncio.Lock()
        # The version that can be applied; None if none can.
        self._staged: StagedVersion | None = None

    def begin(self, call: int, version: int, keys: Sequence[str], deadline_s: float) -> None:
        """Starts finding a version; a load in progress is dropped first."""
        self.drop()
        self._task = self._data.start(
            call,
            self._load(version, tuple(keys), deadline_s),
            f"loading version {version}",
            WeightsIncomplete(f"loading version {version} was dropped", "another update began"),
        )

    def drop(self) -> None:
        """Forgets what is staged and stops a load in progress; its call ends with an error."""
        self._staged = None
        if self._task is not None:
            self._data.cancel(self._task)

    def take(self, version: int) -> StagedVersion:
        """The staged version, to be applied now.

        Raises WeightsIncomplete if `version` is not staged, VersionGone if it is not there any more.
        """
        staged = self._staged
        if staged is None or staged.version != version:
            raise WeightsIncomplete(
                f"engine {self._spec.name} has version {staged and staged.version} staged, not {version}",
                "load the version before it is committed",
            )
        staged.mapped.check()
        return staged

    def applied(self, staged: StagedVersion, seconds: float) -> None:
        """Confirms that what was applied, in so many seconds, is the version, and forgets where it lies.

        Raises VersionGone, ChecksumMismatch: the weights are then of no version.
        """
        self._staged = None
        staged.confirm()
        if not staged.copied:
            self._data.note_mapped(staged.size_bytes, seconds)

    # --- in the thread ------------------------------------------------------------------------

    async def _load(self, version: int, keys: tuple[str, ...], deadline_s: float) -> LoadReport:
        async with self._reading:
            self._staged = None
            started = time.perf_counter()
            staged = await self._find(version, keys, deadline_s)
            self._staged = staged
            seconds = time.perf_counter() - started
            return LoadReport(version=version, size_bytes=staged.size_bytes, read_s=seconds)

    async def _find(self, version: int, keys: tuple[str, ...], deadline_s: float) -> StagedVersion:
        dispatcher = await self._data.dispatcher()
        outline, slices = self._slices or self._prepare(await dispatcher.describe(keys), keys)
        try:
            mapped = await dispatcher.map(VersionRead(keys, slices), deadline_s)
        except LayoutError:
            # Published in another dtype than before, perhaps since the trainer was restored.
            outline, slices = self._prepare(await dispatcher.describe(keys), keys)
            mapped = await dispatcher.map(VersionRead(keys, slices), deadline_s)
        shapes = {name: sliced.shape for name, sliced in self._parameters.items()}
        copied = all(map(_is_copy, keys))
        return StagedVersion(version, self._dtypes, shapes, outline, mapped, copied)

    def _prepare(self, forms: Mapping[str, Form], keys: tuple[str, ...]) -> tuple[Outline, Repeated]:
        """Returns what is to be read of every version in the published dtypes.

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
        self._dtypes = published
        outline = Outline(
            {name: (sliced.shape, numpy_dtype(published[name])) for name, sliced in self._parameters.items()}
        )
        slices = Repeated(
            (part.source, part.box, outline.arrays[name][part.target.slices()])
            for name, sliced in self._parameters.items()
            for part in sliced.parts
        )
        self._slices = outline, slices
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
