"""Tickets that wait to be leased, and their order. Pure.

    tried again ─► before all others, the lowest number first
    new, drawn    the lowest number first
    new, longest  the lowest number tells whose turn it is:
                  evaluation, warm-up ─► that ticket
                  training            ─► of the new tickets of its batch, that with the longest predicted
                                         response; of equal ones the lowest number

The order is a function of the tickets that wait. A batch is that of the tickets' places in the schedule (see
admission.places). Tickets of a group have one prediction, and stay together. Where no group was replaced,
no new ticket is leased before one of an earlier batch: places are issued in their order.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict

from services.scheduler.state.tickets import Purpose, Ticket


class PendingTickets:
    """Pending tickets in the order in which they are leased.

    batch_groups: groups of a batch of training, whose longest responses come first; 0 for the order in which
    tickets were drawn.
    """

    def __init__(self, batch_groups: int = 0) -> None:
        self._batch_groups = batch_groups
        self._tickets: dict[int, Ticket] = {}
        # Heaps of (is new, number), and by batch of training of (-predicted tokens, number) of new tickets.
        # One that no longer waits as such is skipped when it comes up.
        self._turns: list[tuple[bool, int]] = []
        self._longest: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        # By batch of training, new tickets that wait.
        self._new: Counter[int] = Counter()

    def __len__(self) -> int:
        """Number of tickets that wait."""
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        """Adds a ticket that waits from now on."""
        self._tickets[ticket.id] = ticket
        heapq.heappush(self._turns, (_is_new(ticket), ticket.id))
        if self._is_ordered(ticket):
            batch = ticket.index // self._batch_groups
            heapq.heappush(self._longest[batch], (-ticket.predicted_tokens, ticket.id))
            self._new[batch] += 1

    def remove(self, ticket: Ticket) -> None:
        """Removes a ticket that waits no longer; it is still as it was when it was added."""
        del self._tickets[ticket.id]
        if not self._tickets:
            self._turns.clear()
        if self._is_ordered(ticket):
            batch = ticket.index // self._batch_groups
            self._new[batch] -= 1
            if not self._new[batch]:
                del self._new[batch], self._longest[batch]

    def first(self) -> Ticket | None:
        """Returns the ticket to lease next, which stays here until it is removed; None if none waits."""
        while self._turns and not self._waits(*self._turns[0]):
            heapq.heappop(self._turns)
        if not self._turns:
            return None
        ticket = self._tickets[self._turns[0][1]]
        if not self._is_ordered(ticket):
            return ticket
        longest = self._longest[ticket.index // self._batch_groups]
        while not self._waits(True, longest[0][1]):
            heapq.heappop(longest)
        return self._tickets[longest[0][1]]

    def _waits(self, new: bool, number: int) -> bool:
        ticket = self._tickets.get(number)
        return ticket is not None and _is_new(ticket) is new

    def _is_ordered(self, ticket: Ticket) -> bool:
        """Returns whether a ticket's turn depends on its prediction."""
        return self._batch_groups > 0 and ticket.purpose is Purpose.TRAIN and _is_new(ticket)


def _is_new(ticket: Ticket) -> bool:
    """Returns whether a ticket was never leased."""
    return ticket.attempt == 0
