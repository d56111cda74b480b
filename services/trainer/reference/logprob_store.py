"""A rank's log-probs in its arena, kept as long as their trajectories' own columns.

    reserve ─► (the rank writes in place) ─► publish ─► readers ─► free, when BatchCommitted names the
                                                                   trajectories, be they trained or dropped
A lease's sequences lie end to end in one tensor, so that a lease costs one descriptor a rank; it goes
when the last of its trajectories does. What may go is said once, and perhaps before it was published, or
even before its lease reached this rank: so it is remembered. Used from the rank's loop; arrays may be
filled on any thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from earl.dispatch.layout.box import Box
from earl.dispatch.publish.tensor_store import TensorSpec, TensorStore
from earl.errors import ArenaFull
from earl.parallelism import REFERENCE

# Trajectories whose end is remembered: many more than are on their way at once.
REMEMBERED = 1 << 16


def logprob_key(life: str, lease: int, rank: int, role: str = REFERENCE) -> str:
    """Registry key of what rank `rank` of the life of a role's stage computed for its lease-th lease."""
    return f"{role}/{life}/{lease}/{rank}"


class LogprobStore:
    """Log-probs in this rank's arena, from being reserved until their trajectories have ended."""

    def __init__(self, store: TensorStore, role: str = REFERENCE) -> None:
        """role: also the name of the tensors."""
        self._store, self._role = store, role
        # Trajectory's key -> key of the tensor that its log-probs lie in; how many lie in each.
        self._held: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        # What is reserved and not yet published.
        self._coming: dict[str, list[str]] = {}
        # Trajectories that nobody will read any more, newest last.
        self._gone: OrderedDict[str, None] = OrderedDict()

    @property
    def free_tokens(self) -> int:
        """Tokens that surely fit now, and leave half of what is free to the lease after them."""
        arena = self._store.arena
        return min(arena.largest_bytes, arena.free_bytes // 2) // np.dtype(np.float32).itemsize

    @property
    def used_fraction(self) -> float:
        arena = self._store.arena
        return 1.0 - arena.free_bytes / arena.capacity_bytes

    async def reserve(
        self, key: str, trajectories: Iterable[str], total_tokens: int, box: Box
    ) -> np.ndarray | None:
        """An array float32 [size of the box] in the arena to be filled, or None where there is no space now.

        The box is this rank's slice of the total_tokens of these trajectories.
        """
        try:
            spec = TensorSpec("float32", (total_tokens,), box)
            array = self._store.reserve(key, {self._role: spec})[self._role]
        except ArenaFull:
            return None
        self._coming[key] = list(trajectories)
        return array

    async def publish(self) -> None:
        """Makes what was reserved known; it replaces what was held for the same trajectories.

        Raises BusUnavailable.
        """
        await self._store.publish(list(self._coming))
        coming, self._coming = self._coming, {}
        for key, trajectories in coming.items():
            await self._drop(trajectories)
            self._held |= dict.fromkeys(trajectories, key)
            self._counts[key] = len(trajectories)
            await self._drop([trajectory for trajectory in trajectories if trajectory in self._gone])

    async def free(self, trajectories: Iterable[str]) -> None:
        """Frees what lies, or will lie, here for these trajectories: they are trained or dropped."""
        trajectories = list(trajectories)
        self._gone.update(dict.fromkeys(trajectories))
        while len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)
        await self._drop(trajectories)

    async def _drop(self, trajectories: Iterable[str]) -> None:
        empty = []
        for trajectory in trajectories:
            held = self._held.pop(trajectory, None)
            if held is not None:
                self._counts[held] -= 1
                if not self._counts[held]:
                    del self._counts[held]
                    empty.append(held)
        await self._store.remove(empty)
