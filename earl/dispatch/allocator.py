"""First-fit allocation of byte ranges with coalescing. Pure: no memory, only offsets."""

from __future__ import annotations

from bisect import bisect_left

ALIGNMENT_BYTES = 64


class FirstFit:
    """Free ranges of [start, stop), kept sorted and never adjacent."""

    def __init__(self, start: int, stop: int) -> None:
        self._starts = [start] if stop > start else []
        self._sizes = [stop - start] if stop > start else []

    @property
    def free_bytes(self) -> int:
        return sum(self._sizes)

    @property
    def largest_bytes(self) -> int:
        return max(self._sizes, default=0)

    def take(self, size_bytes: int) -> int | None:
        """The offset of a range of at least this size, aligned; None when no free range is large enough."""
        needed = rounded(size_bytes)
        for i, size in enumerate(self._sizes):
            if size < needed:
                continue
            offset = self._starts[i]
            if size == needed:
                del self._starts[i], self._sizes[i]
            else:
                self._starts[i] += needed
                self._sizes[i] -= needed
            return offset
        return None

    def give(self, offset: int, size_bytes: int) -> None:
        """Return what `take` gave, with the size that was asked for."""
        size = rounded(size_bytes)
        i = bisect_left(self._starts, offset)
        joins_next = i < len(self._starts) and self._starts[i] == offset + size
        joins_last = i > 0 and self._starts[i - 1] + self._sizes[i - 1] == offset
        if joins_next:
            size += self._sizes[i]
            del self._starts[i], self._sizes[i]
        if joins_last:
            self._sizes[i - 1] += size
        else:
            self._starts.insert(i, offset)
            self._sizes.insert(i, size)


def rounded(size_bytes: int) -> int:
    """Size of the range that holds this many bytes; an empty region still has a place of its own."""
    return max(ALIGNMENT_BYTES, -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
