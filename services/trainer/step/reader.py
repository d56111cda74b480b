"""A rank pulls its own slices of a batch from the arenas where they were produced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from earl.dispatch.layout.box import Box
from earl.dispatch.read.reader import Dispatcher, Read, SequenceRead
from services.trainer.step.batch import Columns
from services.trainer.step.plan import REFERENCE_TENSOR, ReplicaSequence


async def read_columns(
    dispatcher: Dispatcher, columns: Columns, items: Sequence[ReplicaSequence], deadline_s: float
) -> None:
    """Fills the columns with these sequences, together. Raises as Dispatcher.read."""
    columns.take(items)
    if not items:
        return
    sampled = SequenceRead([item.key for item in items], np.diff(columns.offsets), columns.sampled)
    reference = [
        Read(item.reference_keys, REFERENCE_TENSOR, _span(item), columns.of(i)["reference"])
        for i, item in enumerate(items)
        if item.reference_keys
    ]
    await dispatcher.read([sampled, *reference], deadline_s)
    columns.mask()


def _span(item: ReplicaSequence) -> Box:
    return Box((item.reference_offset,), (item.reference_offset + item.total_tokens,))
