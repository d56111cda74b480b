"""A rank's reference log-probs in its arena, each kept as long as its trajectory's own columns.

    reserve ─► (the rank writes in place) ─► publish ─► readers ─► free, when BatchCommitted names the
                                                                   trajectory, be it trained or dropped
Used from the rank's loop; the arrays may be filled on any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from earl.dispatch.layout import Box
from earl.dispatch.store import TensorSpec, TensorStore
from earl.errors import ArenaFull

TENSOR = "reference"


def key(ticket_id: int, attempt: int, rank: int) -> str:
    """Registry key of the slice that tensor-parallel rank `rank` holds."""
    return f"reference/{ticket_id}/{attempt}/{rank}"


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for one slice: `box` of the sequence's float32[total_tokens]. trajectory: its columns' key."""

    key: str
    trajectory: str
    total_tokens: int
    box: Box


class Shelf:
    """What this rank holds."""

    def __init__(self, store: TensorStore) -> None:
        self._store = store
        # Trajectory's key -> key of the slice that lies here; and those that are being made.
        self._held: dict[str, str] = {}
        self._coming: dict[str, str] = {}
        self._unwanted: set[str] = set()

    @property
    def free_tokens(self) -> int:
        """Tokens that surely fit now: half of what is free, for alignment and pieces."""
        return self._store.arena.free_bytes // (2 * np.dtype(np.float32).itemsize)

    @property
    def used_fraction(self) -> float:
        arena = self._store.arena
        return 1.0 - arena.free_bytes / arena.capacity_bytes

    async def reserve(self, slots: Sequence[Slot]) -> list[np.ndarray | None]:
        """float32[size of the box] for each, in the arena; None where it has no room now.

        An earlier slice under the same key is replaced: it could not be read.
        """
        await self._store.remove([slot.key for slot in slots])
        arrays: list[np.ndarray | None] = []
        for slot in slots:
            spec = TensorSpec("float32", (slot.total_tokens,), slot.box)
            try:
                arrays.append(self._store.reserve(slot.key, {TENSOR: spec})[TENSOR])
            except ArenaFull:
                arrays.append(None)
                continue
            self._held.pop(slot.trajectory, None)
            self._coming[slot.trajectory] = slot.key
        return arrays

    async def publish(self) -> None:
        """Make what was reserved known. Raises BusUnavailable."""
        await self._store.publish(list(self._coming.values()))
        self._held |= self._coming
        self._coming.clear()
        unwanted, self._unwanted = self._unwanted, set()
        await self.free(unwanted)

    async def free(self, trajectories: Iterable[str]) -> None:
        """These trajectories are trained or dropped: nobody reads what lies here for them."""
        trajectories = list(trajectories)
        # What is being written goes once it is published.
        self._unwanted.update(trajectory for trajectory in trajectories if trajectory in self._coming)
        held = [trajectory for trajectory in trajectories if trajectory in self._held]
        await self._store.remove([self._held.pop(trajectory) for trajectory in held])
