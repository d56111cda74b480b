"""The entry of a mixture that each place of a schedule plays: a sequence of low discrepancy. Pure.

Place i plays the entry whose interval of [0, 1), as long as its share, holds the fractional part of
o + i * 0.618… (the additive recurrence of the golden ratio). The offset o comes from the run's seed. So any n
successive places hold close to n times each share: a batch is mixed like the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence

from earl.config.weight import Schedule, weight_at

# 2**64 divided by the golden ratio, made odd.
STRIDE = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
# Places that are drawn and counted together.
BLOCK = 256
# Blocks that are kept.
KEPT = 64


class Draws:
    """shares: of the entries, together 1. schedules: of their weights, by step, where shares change; empty
    for constant ones. batch_groups: the places of a step. offset: the o above times 2**64.
    """

    def __init__(
        self, shares: Sequence[float], schedules: Sequence[Schedule], batch_groups: int, offset: int
    ) -> None:
        self._shares, self._schedules = tuple(shares), tuple(schedules)
        self._batch_groups, self._offset = batch_groups, offset
        self._blocks: dict[int, tuple[int, ...]] = {}
        # The places that each entry has before each block.
        self._before = [(0,) * len(self._shares)]

    def entry_at(self, place: int) -> int:
        """The number of the entry that the place plays."""
        return self._entries(place // BLOCK)[place % BLOCK]

    def entries_at(self, places: range) -> list[int]:
        """The numbers of the entries that successive places play: `entry_at` of each, many at once."""
        entries: list[int] = []
        start = places.start
        while start < places.stop:
            block, first = divmod(start, BLOCK)
            entries += self._entries(block)[first : first + places.stop - start]
            start = (block + 1) * BLOCK
        return entries

    def count_before(self, entry: int, place: int) -> int:
        """The places before this one that play the entry."""
        block, rest = divmod(place, BLOCK)
        while len(self._before) <= block:
            entries = self._entries(len(self._before) - 1)
            counts = enumerate(self._before[-1])
            self._before.append(tuple(before + entries.count(other) for other, before in counts))
        return self._before[block][entry] + self._entries(block)[:rest].count(entry)

    def _entries(self, block: int) -> tuple[int, ...]:
        """The entry that each place of the block plays."""
        entries = self._blocks.get(block)
        if entries is None:
            while len(self._blocks) >= KEPT:
                del self._blocks[next(iter(self._blocks))]
            entries = tuple(map(self._drawn, range(block * BLOCK, (block + 1) * BLOCK)))
            self._blocks[block] = entries
        return entries

    def _drawn(self, place: int) -> int:
        shares = self._shares
        if self._schedules:
            step = place // self._batch_groups
            weights = [weight_at(schedule, step) for schedule in self._schedules]
            shares = tuple(weight / sum(weights) for weight in weights)
        point = (self._offset + place * STRIDE & MASK) / (MASK + 1)
        for entry, share in enumerate(shares[:-1]):
            if point < share:
                return entry
            point -= share
        # With rounding the point may lie beyond the last interval that has a length.
        return max(entry for entry, share in enumerate(shares) if share)
