"""A pool of equal buffers: fresh pages cost more than the copy into them."""

from __future__ import annotations

import numpy as np

_KEPT = 4


class Buffers:
    """Take and give; at most a few idle buffers are kept. For one loop."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._idle: list[np.ndarray] = []

    def take(self, least_bytes: int = 0) -> np.ndarray:
        """A uint8 array of the pool's size, or larger for a larger least_bytes, its bytes undefined."""
        if self._idle and least_bytes <= self._size_bytes:
            return self._idle.pop()
        return np.empty(max(least_bytes, self._size_bytes), np.uint8)

    def give(self, buffer: np.ndarray) -> None:
        """Returns what `take` gave, once nothing touches it any more."""
        if len(self._idle) < _KEPT and len(buffer) == self._size_bytes:
            self._idle.append(buffer)
