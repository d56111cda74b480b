"""The owner's changes: each version's differences from the one before, published beside it.

    published(1) ── code(2) ─► 1 and 2 compared, block by block ─► weights/2/trainer-0/changes
                    published(2) ── code(3) ─► …

Both versions must lie in their arrays until `code` returns: a trainer's rank has them in its two slots.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from earl.dispatch.changes.coding import COLUMNS, blocks_of, code_changes
from earl.dispatch.changes.record import (
    BODY,
    HEADER,
    HEADER_WORDS,
    TABLE,
    PublishedRegion,
    changes_key,
    header_of,
)
from earl.dispatch.describe.descriptor import Descriptor
from earl.dispatch.memory.allocator import ALIGNMENT_BYTES
from earl.dispatch.publish.tensor_store import TensorSpec, TensorStore
from earl.waiting import in_thread

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Base:
    """The version published last. layout: equal for versions whose arrays are the same parts of tensors."""

    version: int
    region: PublishedRegion
    layout: Any
    arrays: Mapping[str, np.ndarray]


class ChangesPublisher:
    """Codes the changes of one owner's versions.

    region_bytes: of the region of each version's changes, so the most that they may take.
    """

    def __init__(self, store: TensorStore, region_bytes: int) -> None:
        self._store = store
        self._region_bytes = region_bytes
        self._base: _Base | None = None

    async def code(self, key: str, version: int, layout: Any, arrays: Mapping[str, np.ndarray]) -> list[str]:
        """Reserves what these arrays differ in from those published last; returns its key, to publish.

        No key if those were of another layout, or if too much has changed. arrays: in the order in which they
        were reserved under `key`. Raises ArenaFull.
        """
        base, self._base = self._base, None
        if base is None or base.layout != layout or base.arrays.keys() != arrays.keys():
            return []
        rows = sum(blocks_of(array.size) for array in arrays.values())
        specs = {HEADER: TensorSpec("int64", (HEADER_WORDS,)), TABLE: TensorSpec("int64", (rows, COLUMNS))}
        rest_bytes = self._region_bytes - sum(spec.rounded_bytes for spec in specs.values())
        if not rows or rest_bytes < ALIGNMENT_BYTES:
            return []
        specs[BODY] = TensorSpec("uint8", (rest_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES,))
        reserved = changes_key(key)
        made = self._store.reserve(reserved, specs, version)
        made[HEADER][:] = header_of(base.version, base.region)
        pairs = [(base.arrays[name], array) for name, array in arrays.items()]
        try:
            used = await in_thread(code_changes, pairs, made[TABLE], made[BODY])
        except BaseException:
            self._store.free(reserved)
            raise
        if used is None:
            log.info("too much changed from version %d to %d to publish changes", base.version, version)
            self._store.free(reserved)
            return []
        return [reserved]

    def published(self, descriptor: Descriptor, layout: Any, arrays: Mapping[str, np.ndarray]) -> None:
        """Notes what the next version's changes are changes of."""
        region = PublishedRegion.of(descriptor)
        self._base = _Base(descriptor.version, region, layout, arrays)
