"""The input of one step of the torch engine, as every rank gets it. No torch."""

from __future__ import annotations

import msgspec
import numpy as np

GIVE_BACK = -1


class StepBatch(msgspec.Struct, array_like=True):
    """Columns of B sequences, int64: slots; starts, the tokens whose KV is in the slot already; counts, the
    tokens to add; and tokens [sum of counts], packed in that order.

    moves [M, 4] int64 are done first, in their order: (source, target, count, 0) copies rows of KV from slot
    to slot; (GIVE_BACK, slot, first, stop) frees rows.
    """

    slots: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    tokens: np.ndarray
    moves: np.ndarray = msgspec.field(default_factory=lambda: np.zeros((0, 4), dtype=np.int64))

    def to_bytes(self) -> bytes:
        return np.concatenate(
            (
                [len(self.slots), len(self.moves)],
                self.moves.reshape(-1),
                self.slots,
                self.starts,
                self.counts,
                self.tokens,
            )
        ).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> StepBatch:
        values = np.frombuffer(data, dtype=np.int64)
        size, first = int(values[0]), 2 + 4 * int(values[1])
        moves = values[2:first].reshape(-1, 4)
        slots, starts, counts, tokens = np.split(values[first:], (size, 2 * size, 3 * size))
        return cls(slots, starts, counts, tokens, moves)
