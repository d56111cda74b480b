"""A rank pulls its own slices of a batch from the arenas where they were produced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from earl.dispatch.dispatcher import Dispatcher, Read
from earl.dispatch.layout import Box
from services.trainer.activity import Transfer
from services.trainer.batch import Columns
from services.trainer.plan import Item


async def read_columns(
    dispatcher: Dispatcher, columns: Columns, items: Sequence[Item], deadline_s: float
) -> None:
    """Fill the columns with these sequences, together. Raises as Dispatcher.read."""
    reads = [_read(item, name, into) for item, name, into in columns.take(items)]
    if reads:
        await dispatcher.read(reads, deadline_s)


def _read(item: Item, name: str, into: np.ndarray) -> Read:
    if name != "reference":
        return Read((item.key,), name, None, into)
    start = item.reference_offset
    return Read(item.reference_keys, name, Box((start,), (start + item.total_tokens,)), into)


def transfers(dispatcher: Dispatcher) -> list[Transfer]:
    """What this rank has read so far, by path."""
    return [
        Transfer(path, total.size_bytes, total.seconds, total.transfers)
        for path, total in dispatcher.totals.items()
    ]
