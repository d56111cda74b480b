"""The stop tokens of each slot's sequence, as a column: a step checks all sequences at once. Pure."""

from __future__ import annotations

import numpy as np

NO_TOKEN = -1


class StopIds:
    """Stop ids [slots, K], padded with NO_TOKEN; K grows with the longest list."""

    def __init__(self, slots: int) -> None:
        self.ids = np.full((slots, 1), NO_TOKEN, dtype=np.int64)

    def put(self, slot: int, stops: set[int]) -> None:
        """Sets the stop tokens of a slot."""
        if len(stops) > self.ids.shape[1]:
            wider = np.full((len(self.ids), len(stops)), NO_TOKEN, dtype=np.int64)
            wider[:, : self.ids.shape[1]] = self.ids
            self.ids = wider
        self.ids[slot] = NO_TOKEN
        self.ids[slot, : len(stops)] = list(stops)

    def met(self, slots: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """bool[N]: whether ids [N] end the sequences of slots [N]."""
        return (self.ids[slots] == ids[:, None]).any(1)
