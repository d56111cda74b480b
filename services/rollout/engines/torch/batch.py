"""The input of one step of the torch engine, as every rank gets it. No torch."""

from __future__ import annotations

import msgspec
import numpy as np

GIVE_BACK = -1


class StepBatch(msgspec.Struct, array_like=True):
    """Columns of B sequences, int64: slots; starts, the tokens whose KV is in the slot already; counts, the
    tokens to add; drafts, how many of those, the last ones, are drafts; and tokens [sum of counts], packed in
    that order.

    moves [M, 4] int64 are done first, in their order: (source, target, count, 0) copies rows of KV from slot
    to slot; (GIVE_BACK, slot, first, stop) frees rows.
    """

    slots: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    drafts: np.ndarray
    tokens: np.ndarray
    moves: np.ndarray = msgspec.field(default_factory=lambda: np.zeros((0, 4), dtype=np.int64))

    def sampled_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns of each row of logits [sum of 1 + drafts] its sequence's place in the batch, and how many
        tokens of the draft come before it."""
        rows = self.drafts + 1
        of = np.repeat(np.arange(len(rows)), rows)
        return of, np.arange(len(of)) - (np.cumsum(rows) - rows)[of]

    def to_bytes(self) -> bytes:
        return np.concatenate(
            (
                [len(self.slots), len(self.moves)],
                self.moves.reshape(-1),
                self.slots,
                self.starts,
                self.counts,
                self.drafts,
                self.tokens,
            )
        ).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> StepBatch:
        values = np.frombuffer(data, dtype=np.int64)
        size, first = int(values[0]), 2 + 4 * int(values[1])
        moves = values[2:first].reshape(-1, 4)
        sections = [number * size for number in range(1, 5)]
        slots, starts, counts, drafts, tokens = np.split(values[first:], sections)
        return cls(slots, starts, counts, drafts, tokens, moves)
