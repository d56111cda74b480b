"""The published form of an owner's changes: what stands under their key, and of which version they are. Pure.

    weights/8/trainer-0            an owner's part of version 8, whole
    weights/8/trainer-0/changes    header (the version before, as it was published) · blocks (table) · body

The table has the blocks of all parts of the whole version's descriptor, in its order. A version number alone
does not say what a version holds, for a trainer that went back to a checkpoint makes the same numbers again.
A region and its generation do: what is published there never changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from earl.dispatch.changes.coding import BLOCK_ELEMENTS
from earl.dispatch.describe.descriptor import Descriptor, only_region
from earl.dispatch.layout.box import Box
from earl.errors import ChangesUnusable

HEADER, TABLE, BODY = "header", "blocks", "body"
HEADER_WORDS = 6
_FORMAT = 1
_REMEDY = "read the whole version"


def changes_key(key: str) -> str:
    """The key of the changes that lead to the version under `key`."""
    return f"{key}/changes"


@dataclass(frozen=True, slots=True)
class PublishedRegion:
    """Names what one owner published once: its arena's nonce, and a slot's generation."""

    nonce: int
    slot: int
    generation: int

    @classmethod
    def of(cls, descriptor: Descriptor) -> PublishedRegion:
        """Raises ChangesUnusable for a descriptor whose content is not in one region."""
        region = only_region(descriptor)
        if region is None:
            raise ChangesUnusable(f"{descriptor.key} does not lie in one region", _REMEDY)
        return cls(region.arena.nonce, region.slot, region.generation)


def header_of(version: int, base: PublishedRegion) -> np.ndarray:
    """int64[HEADER_WORDS]: the header of changes from this version."""
    words = (_FORMAT, BLOCK_ELEMENTS, version, base.nonce, base.slot, base.generation)
    return np.array(words, np.uint64).view(np.int64)


def base_of(header: np.ndarray, key: str) -> tuple[int, PublishedRegion]:
    """(number of the version before, the region that it was published in). Raises ChangesUnusable."""
    form, block_elements, version, nonce, slot, generation = header.view(np.uint64).tolist()
    if (form, block_elements) != (_FORMAT, BLOCK_ELEMENTS):
        raise ChangesUnusable(
            f"{key} has format {form} with blocks of {block_elements} elements, not {_FORMAT} with "
            f"{BLOCK_ELEMENTS}",
            _REMEDY,
        )
    return version, PublishedRegion(nonce, slot, generation)


@dataclass(frozen=True, slots=True)
class PublishedPart:
    """The box of one tensor that an owner holds. dtype: by name."""

    name: str
    dtype: str
    box: Box


def parts_of(descriptor: Descriptor) -> list[PublishedPart]:
    """Every part that an owner publishes, in the order in which it reserved them.

    Raises ChangesUnusable where an owner holds more than one box of a tensor.
    """
    parts: list[PublishedPart] = []
    for shard in descriptor.classes:
        layout = shard.tensors.layout
        names, _ = shard.tensors.held(shard.rank)
        runs = layout.runs(shard.rank)[layout.stack :]
        if names and any(len(ranges) != 1 for ranges in runs):
            raise ChangesUnusable(
                f"{descriptor.key} holds several boxes of {shard.tensors.template}", _REMEDY
            )
        if names:
            box = Box(tuple(ranges[0][0] for ranges in runs), tuple(ranges[0][1] for ranges in runs))
            parts += [PublishedPart(name, shard.tensors.dtype, box) for name in names]
    for tensor in descriptor.tensors:
        parts += [PublishedPart(tensor.name, tensor.dtype, shard.box) for shard in tensor.shards]
    return parts
