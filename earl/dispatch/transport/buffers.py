"""A pool of equal buffers: fresh pages cost more than the copy into them."""

from __future__ import annotations

import numpy as np

_KEPT = 4


class Buffers:
    """Take and give; at most a few idle buffers are kept. For one loop."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._idle: list[np.ndarray] = []

    def take(self) -> np.ndarray:
        """A uint8 array of the pool's size, its bytes undefined."""
        return self._idle.pop() if self._idle else np.empty(self._size_bytes, np.uint8)

    def give(self, buffer: np.ndarray) -> None:
        """Return what `take` gave, once nothing touches it any more."""
        if len(self._idle) < _KEPT:
            self._idle.append(buffer)
