"""The reader's changes: turns a copy of one version into the next one, and reads only what differs.

    held regions ─► registry: descriptors ─► headers: of the version that is held? ─► tables ─► bodies of the
    blocks that meet the slices ─► check: positions, digests of whole blocks ─► apply

Promise: until `apply` nothing is written into the slices. Whatever `read_changes` raises, they are what they
were, and the whole version can be read into them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from earl.dispatch.changes.coding import (
    BLOCK_ELEMENTS,
    COLUMNS,
    block_starts,
    blocks_of,
    changed_elements,
    refuse_other_digest,
)
from earl.dispatch.changes.record import (
    BODY,
    HEADER,
    HEADER_WORDS,
    TABLE,
    PublishedPart,
    PublishedRegion,
    base_of,
    changes_key,
    parts_of,
)
from earl.dispatch.describe.descriptor import Descriptor
from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.layout.box import Box
from earl.dispatch.read.reader import Dispatcher
from earl.dispatch.read.resolve import Read
from earl.dispatch.registry.registry import Registry
from earl.errors import ChangesUnusable
from earl.waiting import in_thread

_REMEDY = "read the whole version"
Slice = tuple[str, Box | None, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """The place of a part's elements in one of the reader's arrays.

    shape: of the part. common: the elements of it that the array has, counted from the part's first one.
    into: the array's elements of `common`.
    """

    shape: tuple[int, ...]
    common: Box
    into: np.ndarray

    @property
    def _row_elements(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64))

    def needs(self, block: np.ndarray, elements: int) -> np.ndarray:
        """bool[N]: whether blocks of a part may have elements of this array. elements: of the part."""
        first = block * BLOCK_ELEMENTS // self._row_elements
        last = (np.minimum((block + 1) * BLOCK_ELEMENTS, elements) - 1) // self._row_elements
        return (first < self.common.stop[0]) & (last >= self.common.start[0])

    def whole_block(self, start: int, stop: int) -> np.ndarray | None:
        """A copy of the part's elements [start, stop), row-major; None if the array has not all of them."""
        row = self._row_elements
        first, last = start // row, -(-stop // row)
        inner = self.common.start[1:], self.common.stop[1:]
        if inner != ((0,) * (len(self.shape) - 1), self.shape[1:]):
            return None
        if first < self.common.start[0] or last > self.common.stop[0]:
            return None
        before = self.common.start[0]
        rows = self.into[first - before : last - before].reshape(-1)
        return rows[start - first * row : stop - first * row].copy()

    def write(self, start: int, indices: np.ndarray, values: np.ndarray) -> None:
        """Writes those of the part's elements start + indices that the array has."""
        if self.common.shape == self.shape and self.into.flags.c_contiguous:
            self.into.reshape(-1)[start + indices] = values
            return
        place = np.unravel_index(start + indices, self.shape)
        bounds = list(zip(place, self.common.start, self.common.stop, strict=True))
        inside = np.logical_and.reduce([(a <= index) & (index < b) for index, a, b in bounds])
        self.into[tuple(index[inside] - a for index, a, _ in bounds)] = values[inside]


@dataclass(frozen=True, slots=True, eq=False)
class _NeededBlocks:
    """Neighbouring blocks of a part that one array needs.

    first: the first one's number. elements: of the part. rows: of the table. bounds: int64[B + 1], where
    their bodies lie.
    """

    target: _Target
    first: int
    elements: int
    rows: np.ndarray
    bounds: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class _BlockChanges:
    """The changes of a block. row: of its table. body: this block's. start, size: elements of the part."""

    row: np.ndarray
    body: np.ndarray
    start: int
    size: int
    target: _Target

    def decoded(self) -> tuple[np.ndarray, np.ndarray]:
        return changed_elements(self.row, self.body, self.size, self.target.into.dtype)

    def check(self) -> None:
        indices, values = self.decoded()
        block = self.target.whole_block(self.start, self.start + self.size)
        if block is not None:
            block[indices] = values
            refuse_other_digest(self.row, block)

    def apply(self) -> None:
        indices, values = self.decoded()
        self.target.write(self.start, indices, values)


class VersionChanges:
    """Checked changes. regions: those of the version that they lead to. size_bytes: that were read."""

    def __init__(
        self, regions: frozenset[PublishedRegion], size_bytes: int, blocks: Sequence[_BlockChanges]
    ) -> None:
        self.regions = regions
        self.size_bytes = size_bytes
        self._blocks = blocks

    def check(self) -> None:
        """Raises ChangesUnusable unless the slices become the version; writes nothing.

        A block of which the slices have only some elements is checked for its positions, not by its digest.
        """
        for block in self._blocks:
            block.check()

    def apply(self) -> None:
        """Turns the slices into the version. They must be as they were when `check` was called."""
        for block in self._blocks:
            block.apply()


async def published_regions(registry: Registry, keys: Sequence[str]) -> frozenset[PublishedRegion]:
    """Returns where these keys' content was published: equal for two calls only if nothing new was meanwhile.

    Raises VersionGone, BusUnavailable; ChangesUnusable where changes cannot lead on from it.
    """
    return frozenset(map(PublishedRegion.of, await registry.get(list(keys))))


async def read_changes(
    registry: Registry,
    dispatcher: Dispatcher,
    keys: Sequence[str],
    held: frozenset[PublishedRegion],
    slices: Iterable[Slice],
    deadline_s: float,
) -> VersionChanges:
    """Reads, and checks, the changes from the version published in `held` to that under `keys`.

    slices: boxes of tensors that hold that version, each (name, box or None for the whole, array as in Read).
    Raises ChangesUnusable; VersionGone if a key has no changes, or no version; and as Dispatcher.read.
    """
    deadline = time.monotonic() + deadline_s
    changes = [changes_key(key) for key in keys]
    descriptors = await registry.get([*keys, *changes])
    whole, coded = descriptors[: len(keys)], descriptors[len(keys) :]
    _refuse_other_life(whole, coded)
    headers = [np.empty(HEADER_WORDS, np.int64) for _ in coded]
    tables = [np.empty(_shape(each, TABLE), np.int64) for each in coded]
    reads = [
        Read((key,), name, None, into)
        for key, header, table in zip(changes, headers, tables, strict=True)
        for name, into in ((HEADER, header), (TABLE, table))
    ]
    receipt = await dispatcher.read(reads, deadline_s)
    _refuse_other_base(changes, headers, held)
    index = _SliceIndex(slices)
    read_bytes = receipt.size_bytes
    reads, blocks = [], []
    for owner, (descriptor, table) in enumerate(zip(whole, tables, strict=True)):
        needed = list(index.parts(descriptor, changes[owner], table, _shape(coded[owner], BODY)[0]))
        body, bodies = _reads(changes[owner], needed)
        reads += bodies
        blocks += _blocks(needed, body)
    index.refuse_gaps()
    if reads:
        receipt = await dispatcher.read(reads, max(0.0, deadline - time.monotonic()))
        read_bytes += receipt.size_bytes
    made = VersionChanges(frozenset(map(PublishedRegion.of, whole)), read_bytes, blocks)
    await in_thread(made.check)
    return made


class _SliceIndex:
    """The slices that are to become the version, and how much of them the parts cover so far."""

    def __init__(self, slices: Iterable[Slice]) -> None:
        self._by_name: dict[str, list[tuple[Box, np.ndarray]]] = {}
        self._missing = 0
        for name, box, into in slices:
            held = box if box is not None else Box.whole(into.shape)
            self._by_name.setdefault(name, []).append((_dimensioned(held), np.atleast_1d(into)))
            self._missing += held.size
        self._known: set[tuple[str, Box]] = set()

    def parts(
        self, descriptor: Descriptor, key: str, table: np.ndarray, body_bytes: int
    ) -> Iterator[_NeededBlocks]:
        """Yields the blocks that the slices need of each part of an owner. Raises ChangesUnusable."""
        parts = parts_of(descriptor)
        counts = [blocks_of(part.box.size) for part in parts]
        if sum(counts) != len(table):
            raise ChangesUnusable(f"{key} has {len(table)} blocks, and not {sum(counts)}", _REMEDY)
        starts = block_starts(table, numpy_dtype(parts[0].dtype).itemsize if parts else 1)
        if starts[-1] > body_bytes:
            raise ChangesUnusable(f"{key} has {body_bytes} bytes of body, and not {starts[-1]}", _REMEDY)
        first = 0
        for part, count in zip(parts, counts, strict=True):
            row, first = first, first + count
            # What replicas hold is read from the first of them.
            if not count or (part.name, part.box) in self._known:
                continue
            self._known.add((part.name, part.box))
            for target in self._targets(part):
                needed = np.flatnonzero(target.needs(np.arange(count), part.box.size))
                begin, end = int(needed[0]), int(needed[-1]) + 1
                bounds = starts[row + begin : row + end + 1]
                yield _NeededBlocks(target, begin, part.box.size, table[row + begin : row + end], bounds)

    def _targets(self, part: PublishedPart) -> Iterator[_Target]:
        box = _dimensioned(part.box)
        for held, into in self._by_name.get(part.name, ()):
            if into.dtype != numpy_dtype(part.dtype):
                raise ChangesUnusable(f"{part.name} is {into.dtype}, published as {part.dtype}", _REMEDY)
            common = box.intersect(held)
            if common is not None:
                self._missing -= common.size
                inside = into[common.relative_to(held.start).slices()]
                yield _Target(box.shape, common.relative_to(box.start), inside)

    def refuse_gaps(self) -> None:
        if self._missing:
            raise ChangesUnusable(f"{self._missing} elements are in no part that has changes", _REMEDY)


def _reads(key: str, needed: Sequence[_NeededBlocks]) -> tuple[np.ndarray, list[Read]]:
    """(uint8: the bodies of these blocks, end to end; the reads that fill it)."""
    runs: list[tuple[int, int]] = []
    for some in needed:
        start, stop = int(some.bounds[0]), int(some.bounds[-1])
        if runs and runs[-1][1] == start:
            runs[-1] = runs[-1][0], stop
        elif stop > start:
            runs.append((start, stop))
    body = np.empty(sum(stop - start for start, stop in runs), np.uint8)
    reads: list[Read] = []
    filled = 0
    for start, stop in runs:
        into = body[filled : filled + stop - start]
        reads.append(Read((key,), BODY, Box((start,), (stop,)), into))
        filled += stop - start
    return body, reads


def _blocks(needed: Sequence[_NeededBlocks], body: np.ndarray) -> Iterator[_BlockChanges]:
    """The changes of each needed block. body: as `_reads` lays it out."""
    first = 0
    for some in needed:
        offsets = (some.bounds - some.bounds[0] + first).tolist()
        first = offsets[-1]
        for i, row in enumerate(some.rows):
            start = (some.first + i) * BLOCK_ELEMENTS
            size = min(BLOCK_ELEMENTS, some.elements - start)
            yield _BlockChanges(row, body[offsets[i] : offsets[i + 1]], start, size, some.target)


def _dimensioned(box: Box) -> Box:
    """The box; of a scalar, that of an array of one element."""
    return box if box.start else Box((0,), (1,))


def _shape(descriptor: Descriptor, name: str) -> tuple[int, ...]:
    """The shape of one of the tensors of changes. Raises ChangesUnusable where they are of another form."""
    forms = {HEADER: ("int64", 1), TABLE: ("int64", 2), BODY: ("uint8", 1)}
    for tensor in descriptor.tensors:
        fits = (tensor.dtype, len(tensor.shape)) == forms[name]
        if tensor.name == name and fits and (name != TABLE or tensor.shape[1] == COLUMNS):
            return tensor.shape
    raise ChangesUnusable(f"{descriptor.key} has no {name} of changes", _REMEDY)


def _refuse_other_life(whole: Sequence[Descriptor], coded: Sequence[Descriptor]) -> None:
    for version, changes in zip(whole, coded, strict=True):
        nonces = PublishedRegion.of(version).nonce, PublishedRegion.of(changes).nonce
        if nonces[0] != nonces[1] or version.version != changes.version:
            raise ChangesUnusable(f"{changes.key} is of another life of the owner of {version.key}", _REMEDY)


def _refuse_other_base(
    keys: Sequence[str], headers: Sequence[np.ndarray], held: frozenset[PublishedRegion]
) -> None:
    bases = [base_of(header, key) for key, header in zip(keys, headers, strict=True)]
    if {region for _, region in bases} != held:
        versions = sorted({version for version, _ in bases})
        raise ChangesUnusable(
            f"{', '.join(keys[:4])} lead on from version {versions}, published elsewhere than what is held",
            _REMEDY,
        )
