"""What a reader wants again and again, of every version: planned once, then only the regions are new.

    Repeated(slices) ─ plan: the first version ─► pieces by arena, kept with the views that copy them
                     ─ plan: any later one ─────► the same pieces, of that version's regions

An engine wants the same slices of every version into the same buffers. While trainer ranks publish the
same classes at the same places of a region, a plan differs from the last one only in whose region that is;
so for any tensors that their owners publish anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from earl.dispatch.describe.descriptor import Descriptor
from earl.dispatch.describe.pieces import Pieces, Repeat
from earl.dispatch.describe.regions import RegionRef, Regions
from earl.dispatch.layout.box import Box
from earl.dispatch.read.resolve import FromArena, Read, ReadPlan
from earl.dispatch.read.resolve_classes import CREDIT_BYTES, resolve

# A larger plan is made anew each time rather than kept: a piece takes about 70 bytes.
_MOST_PIECES = 1 << 20
# Of a larger one the views are made anew: those of a piece take about 1 kB for two slots.
_MOST_VIEWED = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """published: what it was made for. sources: (number of a key, what is read out of its one region)."""

    published: list[Any]
    sources: list[tuple[int, list[Pieces]]]


class Repeated:
    """Boxes of tensors, each (name, box or None for the whole, into), and how the last version had them.

    into: as in Read; kept, and written by every read.
    """

    def __init__(self, wanted: Iterable[tuple[str, Box | None, np.ndarray]]) -> None:
        self._wanted = tuple(wanted)
        self._plan: _Plan | None = None

    def plan(self, keys: tuple[str, ...], known: Mapping[str, Descriptor], turn: int) -> list[FromArena]:
        """From these keys, which together hold one version, as `resolve`. Raises LayoutGap, LayoutError."""
        descriptors = [known[key] for key in keys]
        regions = [_only_region(descriptor) for descriptor in descriptors]
        published = _published(descriptors, regions)
        last = self._plan
        if last is not None and published is not None and last.published == published and self._writable:
            return [_at(regions[number], parts) for number, parts in last.sources]
        self._plan = None
        copies = ReadPlan()
        resolve([Read(keys, *one) for one in self._wanted], known, copies, turn)
        sources = copies.by_arena()
        if published is None or sum(source.copies for source in sources) > _MOST_PIECES:
            return sources
        numbers = {region.arena.nonce: i for i, region in enumerate(regions) if region is not None}
        made = [(numbers[source.arena.nonce], list(source.pieces(CREDIT_BYTES))) for source in sources]
        count = sum(len(pieces) for _, parts in made for pieces in parts)
        kept = [(number, [_kept(pieces, count) for pieces in parts]) for number, parts in made]
        if count <= _MOST_PIECES:
            self._plan = _Plan(published, kept)
        return [_at(regions[number], parts) for number, parts in kept]

    @property
    def _writable(self) -> bool:
        return all(into.flags.writeable for _, _, into in self._wanted)


@dataclass(frozen=True, slots=True, eq=False)
class VersionRead:
    """The slices of one version, or of what else was published anew. keys: every descriptor that together
    holds it."""

    keys: tuple[str, ...]
    slices: Repeated


def _published(descriptors: Sequence[Descriptor], regions: Sequence[RegionRef | None]) -> list[Any] | None:
    """Equal for versions that one plan reads; None where no plan is kept: it is of one region of each of

    as many arenas."""
    nonces = {region.arena.nonce for region in regions if region is not None}
    if not descriptors or len(nonces) < len(regions) or len({one.version for one in descriptors}) > 1:
        return None
    return [
        (region.arena.owner, region.arena.host, *_places(one))
        for one, region in zip(descriptors, regions, strict=True)
        if region is not None
    ]


def _places(descriptor: Descriptor) -> tuple[list[Any], list[Any]]:
    classes = [(one.tensors, one.rank, one.offset_bytes, one.tensor_bytes) for one in descriptor.classes]
    tensors = [
        (
            one.name,
            one.dtype,
            one.shape,
            [(part.box, part.offset_bytes, part.strides_bytes) for part in one.shards],
        )
        for one in descriptor.tensors
    ]
    return classes, tensors


def _only_region(descriptor: Descriptor) -> RegionRef | None:
    """The region of a descriptor of which all lies in one."""
    held = [
        one.region
        for one in (*descriptor.classes, *(part for one in descriptor.tensors for part in one.shards))
    ]
    return held[0] if held and all(region is held[0] for region in held) else None


def _kept(pieces: Pieces, count: int) -> Pieces:
    """Part of a plan of `count` pieces. Joined parts name the same region over and over."""
    repeat = Repeat() if count <= _MOST_VIEWED else None
    return replace(pieces, region=np.zeros_like(pieces.region), repeat=repeat)


def _at(region: RegionRef | None, parts: Sequence[Pieces]) -> FromArena:
    assert region is not None
    source = FromArena(region.arena)
    regions = Regions.of([region])
    for pieces in parts:
        source.add(replace(pieces, regions=regions))
    return source
