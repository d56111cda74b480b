"""A rank pulls its own slices of a batch from the arenas where they were produced, replays from files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from earl.dispatch.layout.box import Box
from earl.dispatch.read.reader import Dispatcher, Read, SequenceRead
from services.trainer.step.batch import Columns
from services.trainer.step.plan import ReplicaSequence, RoleColumn
from services.trainer.step.replay_files import ReplayFiles


async def read_columns(
    dispatcher: Dispatcher, columns: Columns, items: Sequence[ReplicaSequence], deadline_s: float,
    replays: ReplayFiles,
) -> None:  # fmt: skip
    """Fills the columns with these sequences, together; replays come after all others.

    Raises as Dispatcher.read, and ReplayLost before anything is read from an arena.
    """
    columns.take(items)
    replays.read(columns)
    played = [item for item in items if not item.source]
    if not items:
        return
    lengths = np.diff(columns.offsets[: len(played) + 1])
    stop = columns.offsets[len(played)]
    rows = {name: array[:stop] for name, array in columns.sampled.items()}
    sampled = SequenceRead([item.key for item in played], lengths, rows)
    of_roles = [
        Read(column.keys, column.role, _span(column, item.total_tokens), columns.of(i)[column.role])
        for i, item in enumerate(items)
        for column in item.columns
    ]
    if played:
        await dispatcher.read([sampled, *of_roles], deadline_s)
    columns.mask()


def _span(column: RoleColumn, total_tokens: int) -> Box:
    return Box((column.offset,), (column.offset + total_tokens,))
