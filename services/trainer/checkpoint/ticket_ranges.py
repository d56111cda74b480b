"""A set of ticket ids as half-open ranges: what a checkpoint says it was trained on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class TicketSet:
    """Sorted, disjoint, joined ranges; adding costs the logarithm of their number."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in ranges:
            self.add_range(start, stop)

    def add_range(self, start: int, stop: int) -> None:
        """Add ids start <= id < stop. ValueError if that is no range of ids."""
        if not 0 <= start <= stop:
            raise ValueError(f"[{start}, {stop}) is no range of ticket ids")
        if start == stop:
            return
        # Ranges that overlap or touch [start, stop) are joined with it.
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def add(self, ids: Iterable[int]) -> None:
        for ticket_id in ids:
            self.add_range(ticket_id, ticket_id + 1)

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._stops, strict=True))

    def copy(self) -> TicketSet:
        return TicketSet(self.ranges())

    def __contains__(self, ticket_id: int) -> bool:
        at = bisect_right(self._starts, ticket_id) - 1
        return at >= 0 and ticket_id < self._stops[at]

    def __len__(self) -> int:
        return sum(self._stops) - sum(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TicketSet) and self.ranges() == other.ranges()

    __hash__ = None  # type: ignore[assignment]
