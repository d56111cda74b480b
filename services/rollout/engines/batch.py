"""One step's input, as every rank gets it. No torch."""

from __future__ import annotations

import msgspec
import numpy as np


class Batch(msgspec.Struct, array_like=True):
    """One step's input. Columns of B sequences, int64: slots; starts, the tokens whose KV is in the
    slot already; counts, the tokens to add; and tokens [sum of counts], packed in that order."""

    slots: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    tokens: np.ndarray

    def to_bytes(self) -> bytes:
        return np.concatenate(
            ([len(self.slots)], self.slots, self.starts, self.counts, self.tokens)
        ).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Batch:
        values = np.frombuffer(data, dtype=np.int64)
        size = int(values[0])
        return cls(*np.split(values[1:], (size, 2 * size, 3 * size)))
