"""Tickets that wait to be leased, and their order. Pure."""

from __future__ import annotations

import heapq

from services.scheduler.state.tickets import Ticket


class PendingTickets:
    """Pending tickets in the order in which they are leased: that of their numbers."""

    def __init__(self) -> None:
        self._tickets: dict[int, Ticket] = {}
        # Heap of numbers. One that no longer waits is skipped when it comes up.
        self._numbers: list[int] = []

    def __len__(self) -> int:
        """Number of tickets that wait."""
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        """Adds a ticket that waits from now on."""
        self._tickets[ticket.id] = ticket
        heapq.heappush(self._numbers, ticket.id)

    def remove(self, ticket: Ticket) -> None:
        """Removes a ticket that waits no longer."""
        del self._tickets[ticket.id]
        if not self._tickets:
            self._numbers.clear()

    def first(self) -> Ticket | None:
        """Returns the ticket to lease next, which stays here until it is removed; None if none waits."""
        while self._numbers and self._numbers[0] not in self._tickets:
            heapq.heappop(self._numbers)
        return self._tickets[self._numbers[0]] if self._numbers else None
