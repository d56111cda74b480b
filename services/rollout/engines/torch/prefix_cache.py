"""The prefix cache: which slots hold which blocks of tokens, by hash, for one version of the weights.

A block's key is the hash of all tokens up to its end, so that a chain of keys names a prefix. The index
holds what one version computed: it is emptied when the weights change. Pure bookkeeping.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Tokens of a block: prefixes are found in whole blocks.
BLOCK_TOKENS = 16


def block_keys(ids: np.ndarray) -> list[int]:
    """One key for each whole block of ids [N] int64."""
    keys, before = [], 0
    for end in range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS):
        before = hash((before, ids[end - BLOCK_TOKENS : end].tobytes()))
        keys.append(before)
    return keys


class PrefixIndex:
    """An index of the slots that hold each block. A slot's entries are a chain from its first block on."""

    def __init__(self, slots: int) -> None:
        # Keys of each slot's blocks whose KV is there.
        self._chains: list[list[int]] = [[] for _ in range(slots)]
        self._holders: dict[int, dict[int, None]] = {}
        # Blocks that a slot is about to compute.
        self._coming: dict[int, int] = {}
        self._expected: list[list[int]] = [[] for _ in range(slots)]
        # Blocks of each slot that are held [S]; a column for a vectorised comparison.
        self.blocks = np.zeros(slots, dtype=np.int64)

    def longest(self, keys: Sequence[int]) -> tuple[int, int, bool]:
        """(slot, blocks, soon): a slot that holds most of the chain `keys`, -1 if none holds any, how many
        of its blocks, and whether a slot is about to compute the block after them."""
        slot, blocks = -1, 0
        for key in keys:
            holders = self._holders.get(key)
            if not holders:
                break
            slot, blocks = next(reversed(holders)), blocks + 1
        return slot, blocks, blocks < len(keys) and keys[blocks] in self._coming

    def expect(self, slot: int, keys: Sequence[int]) -> None:
        """Notes that the slot will compute these blocks, except those that are held or expected already."""
        for key in keys[int(self.blocks[slot]) :]:
            if key not in self._coming and key not in self._holders:
                self._coming[key] = slot
                self._expected[slot].append(key)

    def extend(self, slot: int, ids: np.ndarray) -> None:
        """Notes the blocks of a slot that has the KV of ids [N], from the first token on."""
        chain = self._chains[slot]
        before = chain[-1] if chain else 0
        for start in range(len(chain) * BLOCK_TOKENS, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            before = hash((before, ids[start : start + BLOCK_TOKENS].tobytes()))
            chain.append(before)
            self._holders.setdefault(before, {})[slot] = None
            if self._coming.get(before) == slot:
                del self._coming[before]
        self.blocks[slot] = len(chain)

    def truncate(self, slot: int, tokens: int) -> None:
        """Forgets the slot's blocks that do not lie within its first `tokens` tokens."""
        chain = self._chains[slot]
        for key in chain[tokens // BLOCK_TOKENS :]:
            holders = self._holders[key]
            holders.pop(slot, None)
            if not holders:
                del self._holders[key]
        del chain[tokens // BLOCK_TOKENS :]
        self.blocks[slot] = len(chain)

    def give_up(self, slot: int) -> None:
        """Withdraws what the slot was expected to compute."""
        for key in self._expected[slot]:
            if self._coming.get(key) == slot:
                del self._coming[key]
        self._expected[slot].clear()

    def clear(self) -> None:
        """Forgets everything held or expected: it is of an older version."""
        self._holders.clear()
        self._coming.clear()
        for chain in (*self._chains, *self._expected):
            chain.clear()
        self.blocks[:] = 0
