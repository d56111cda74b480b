"""The memory of the KV cache: the committed rows of every slot, under one bound.

    rows of a slot:  0 ── in use ──┤── committed (was in use) ──┤── never written ──► context

Rows are committed when they are written and stay so after their sequence ended, until the bound needs
them: giving memory back and taking it again costs more than keeping it. Pure bookkeeping; what must be
given back is noted in `moves`, for every rank's cache.
"""

from __future__ import annotations

import numpy as np

from services.rollout.engines.torch.batch import GIVE_BACK


class KvBudget:
    """Accounts for the rows of all slots. bound: tokens that may be committed in all, rounded down to pages
    of `page` tokens; rows: of a slot."""

    def __init__(self, slots: int, rows: int, bound: int, page: int) -> None:
        self.page = page
        self._rows = rows
        self.bound = bound // page * page
        self.committed = np.zeros(slots, dtype=np.int64)
        # (source, target, count, 0) and (GIVE_BACK, slot, first, stop) since `take`.
        self.moves: list[tuple[int, int, int, int]] = []

    def pages(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens rounded up to pages."""
        return -(-tokens // self.page) * self.page

    def fits(self, tokens: int) -> bool:
        """Returns whether a sequence of so many tokens could be held if it were alone."""
        return -(-tokens // self.page) * self.page <= self.bound

    def fits_all(self, running: np.ndarray, idle: np.ndarray, held: list[int], tokens: int) -> bool:
        """Tells if the KV of sequences of `running` [N] tokens, with a page each to grow by, of `idle` [M]
        tokens, of the slots that are held, and of `tokens` more fits. One sequence alone always fits."""
        if len(running) + len(idle) + len(held) == 0:
            return True
        pages = int(self.pages(running).sum()) + len(running) * self.page + int(self.pages(idle).sum())
        pages += int(self.committed[held].sum()) + int(self.pages(np.array(tokens)))
        return pages <= self.bound

    def commit(self, slots: np.ndarray, tokens: np.ndarray) -> int:
        """Commits the slots' rows up to tokens [N] if the bound allows; returns how many tokens too many that
        would be, 0 if it was done."""
        target = np.maximum(self.pages(tokens), self.committed[slots])
        excess = int(self.committed.sum() + (target - self.committed[slots]).sum()) - self.bound
        if excess > 0:
            return excess
        self.committed[slots] = target
        return 0

    def reclaim(self, slots: np.ndarray, used: np.ndarray, excess: int) -> int:
        """Gives back rows that slots have beyond used [N] tokens, slot by slot, until `excess` tokens are
        given back; returns how many are still too many."""
        spare = self.committed[slots] - self.pages(used)
        for slot, tokens, free in zip(slots.tolist(), self.pages(used).tolist(), spare.tolist(), strict=True):
            if excess <= 0:
                break
            if free > 0:
                self.moves.append((GIVE_BACK, slot, tokens, int(self.committed[slot])))
                self.committed[slot] = tokens
                excess -= free
        return max(0, excess)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Notes a copy of rows from slot to slot; both have them committed."""
        self.moves.append((source, target, tokens, 0))

    def give_back(self, slot: int) -> None:
        """Gives back all rows of the slot, whatever is in them."""
        self.moves.append((GIVE_BACK, slot, 0, self._rows))
        self.committed[slot] = 0

    def wipe(self) -> None:
        """Gives back all rows of all slots: they read as zeros."""
        self.moves.clear()
        for slot in range(len(self.committed)):
            self.give_back(slot)

    def take(self) -> np.ndarray:
        """The moves [M, 4] that were noted since the last call, in their order."""
        moves, self.moves = self.moves, []
        return np.array(moves, dtype=np.int64).reshape(-1, 4)
