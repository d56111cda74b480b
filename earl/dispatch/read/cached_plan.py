"""Slices that a reader takes of every version: planned once, then only the regions are new.

    Repeated(slices) ─ plan: the first version ─► pieces by arena, kept
                     ─ plan: any later one ─────► the same pieces, of that version's regions

An engine reads the same slices of every version into the same buffers. While trainer ranks publish the
same classes at the same places of a region, a plan differs from the last one only in the regions that it
reads. The same holds for any tensors that their owners publish again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from earl.dispatch.describe.descriptor import Descriptor, only_region
from earl.dispatch.describe.pieces import Pieces, Repeat
from earl.dispatch.describe.regions import RegionRef, Regions
from earl.dispatch.layout.box import Box
from earl.dispatch.read.resolve import FromArena, Read, ReadPlan
from earl.dispatch.read.resolve_classes import CREDIT_BYTES, resolve

# A larger plan is made again each time rather than kept: a piece takes about 70 bytes.
_MOST_PIECES = 1 << 20
# Above this, transports prepare each read again: what they keep of a piece takes about 1 kB for two slots.
_MOST_REPEATED = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """published: the layouts that it was made for. sources: (number of a key, what is read of its region)."""

    published: list[Any]
    sources: list[tuple[int, list[Pieces]]]


class Repeated:
    """Boxes of tensors, each (name, box or None for the whole, into), and the plan of the last version.

    into: as in Read; kept, and written by every read.
    """

    def __init__(self, slices: Iterable[tuple[str, Box | None, np.ndarray]]) -> None:
        self._slices = tuple(slices)
        self._plan: _Plan | None = None

    def plan(self, keys: tuple[str, ...], known: Mapping[str, Descriptor], turn: int) -> list[FromArena]:
        """Plans the reads from the arenas for the version that these keys hold together. turn: as in
        `resolve`.

        Raises LayoutGap, LayoutError.
        """
        descriptors = [known[key] for key in keys]
        regions = [only_region(descriptor) for descriptor in descriptors]
        published = _published(descriptors, regions)
        last = self._plan
        if last is not None and published is not None and last.published == published and self._writable:
            return [_from_region(regions[number], parts) for number, parts in last.sources]
        self._plan = None
        copies = ReadPlan()
        resolve([Read(keys, *part) for part in self._slices], known, copies, turn)
        sources = copies.by_arena()
        if published is None or sum(source.copies for source in sources) > _MOST_PIECES:
            return sources
        numbers = {region.arena.nonce: i for i, region in enumerate(regions) if region is not None}
        made = [(numbers[source.arena.nonce], list(source.pieces(CREDIT_BYTES))) for source in sources]
        count = sum(len(pieces) for _, parts in made for pieces in parts)
        kept = [(number, [_copy_for_plan(pieces, count) for pieces in parts]) for number, parts in made]
        if count <= _MOST_PIECES:
            self._plan = _Plan(published, kept)
        return [_from_region(regions[number], parts) for number, parts in kept]

    @property
    def _writable(self) -> bool:
        return all(into.flags.writeable for _, _, into in self._slices)


@dataclass(frozen=True, slots=True, eq=False)
class VersionRead:
    """A read of one version's slices. keys: the descriptors that together hold the version."""

    keys: tuple[str, ...]
    slices: Repeated


def _published(descriptors: Sequence[Descriptor], regions: Sequence[RegionRef | None]) -> list[Any] | None:
    """A value that is equal for all versions that one plan can read.

    None where no plan is kept: unless each descriptor has one region, each in an arena of its own.
    """
    nonces = {region.arena.nonce for region in regions if region is not None}
    versions = {descriptor.version for descriptor in descriptors}
    if len(versions) != 1 or len(nonces) < len(regions):
        return None
    return [
        (region.arena.owner, region.arena.host, *_places(descriptor))
        for descriptor, region in zip(descriptors, regions, strict=True)
        if region is not None
    ]


def _places(descriptor: Descriptor) -> tuple[list[Any], list[Any]]:
    classes = [
        (entry.tensors, entry.rank, entry.offset_bytes, entry.tensor_bytes) for entry in descriptor.classes
    ]
    tensors = [
        (
            entry.name,
            entry.dtype,
            entry.shape,
            [(part.box, part.offset_bytes, part.strides_bytes) for part in entry.shards],
        )
        for entry in descriptor.tensors
    ]
    return classes, tensors


def _copy_for_plan(pieces: Pieces, count: int) -> Pieces:
    """Pieces as a plan of `count` pieces keeps them, all of one region, however often they name it."""
    repeat = Repeat() if count <= _MOST_REPEATED else None
    return replace(pieces, region=np.zeros_like(pieces.region), repeat=repeat)


def _from_region(region: RegionRef | None, parts: Sequence[Pieces]) -> FromArena:
    assert region is not None
    source = FromArena(region.arena)
    regions = Regions.of([region])
    for pieces in parts:
        source.add(replace(pieces, regions=regions))
    return source
