"""Tickets that wait to be leased, and their order. Pure.

    tried again ─► before all others, the lowest number first
    new, drawn    the lowest number first
    new, longest  the lowest number tells whose turn it is:
                  evaluation, warm-up ─► that ticket
                  training            ─► of the new tickets of its batch, that with the longest predicted
                                         response; of equal ones the lowest number

A worker that takes several at once gets its share of long ones: with a quarter of all room it takes every
fourth of that order, closer ones where fewer wait. Otherwise who asks first would have all that are long.
It takes whole groups, whose members share a prompt, where it has room for SEVERAL_GROUPS. Where no prediction
of a batch differs from another, it takes them one after the other.

Where a plan has engines for the tickets of a batch (planned_leases.py), a worker takes what is planned for it
when it is that batch's turn.

The order is a function of the tickets that wait. A batch is that of the tickets' places in the schedule (see
admission.places). Tickets of a group have one prediction. Where no group was replaced, no new ticket is
leased before one of an earlier batch: places are issued in their order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from services.scheduler.state.tickets import Purpose, Ticket

# A worker that takes fewer whole groups than these would be late if one of them is long.
SEVERAL_GROUPS = 4


class LeasePlan(Protocol):
    """The plan for the worker that asks."""

    def covers(self, ticket: Ticket) -> bool:
        """Returns whether a ticket that waits is planned for any worker."""
        ...

    def next(self, new: Callable[[int], Ticket | None]) -> Ticket | None:
        """The ticket that this worker leases next, of those that wait and were never leased; None if none is
        for it now."""
        ...


class PendingTickets:
    """Pending tickets in the order in which they are leased.

    batch_groups: groups of a batch of training, whose longest responses come first; 0 for the order in which
    tickets were drawn.
    """

    def __init__(self, batch_groups: int = 0) -> None:
        self._batch_groups = batch_groups
        self._tickets: dict[int, Ticket] = {}
        # A heap of (is new, number): one that no longer waits as such is skipped when it comes up.
        self._turns: list[tuple[bool, int]] = []
        # By batch of training, (-predicted tokens, number) of its new tickets that wait, in order.
        self._longest: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        # By group of training of which a new ticket waits: how many were added, and how many of them wait.
        self._added: Counter[int] = Counter()
        self._waiting: Counter[int] = Counter()
        # New tickets of training that were added since the start.
        self.added = 0

    def __len__(self) -> int:
        """Number of tickets that wait."""
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        """Adds a ticket that waits from now on."""
        self._tickets[ticket.id] = ticket
        heapq.heappush(self._turns, (_is_new(ticket), ticket.id))
        if self._is_ordered(ticket):
            insort(self._longest[self._batch(ticket)], _by_length(ticket))
            self._added[ticket.group] += 1
            self.added += 1
            self._waiting[ticket.group] += 1

    def remove(self, ticket: Ticket) -> None:
        """Removes a ticket that waits no longer; it is still as it was when it was added."""
        del self._tickets[ticket.id]
        if not self._tickets:
            self._turns.clear()
        if self._is_ordered(ticket):
            batch = self._batch(ticket)
            longest = self._longest[batch]
            del longest[bisect_left(longest, _by_length(ticket))]
            if not longest:
                del self._longest[batch]
            self._waiting[ticket.group] -= 1
            if not self._waiting[ticket.group]:
                del self._waiting[ticket.group], self._added[ticket.group]

    def batches(self) -> list[list[Ticket]]:
        """The new tickets of training, by batch, the earlier ones first; of each the longest first."""
        return [
            [self._tickets[number] for _, number in longest] for _, longest in sorted(self._longest.items())
        ]

    def deal(
        self, credit: int, share: Callable[[], float] = lambda: 1.0, plan: LeasePlan | None = None
    ) -> Iterator[Ticket]:
        """The tickets of up to `credit` episodes to lease at once, one for each.

        It and the others of its match have to be removed before the next is asked for. share: the worker's
        part of all workers' room, above 0. plan: None where nothing is planned.
        """
        batch, group, before, stride, place = -1, -1, 0, 1.0, 0
        for left in range(credit, 0, -1):
            turn = self._turn()
            if turn is None:
                return
            if not self._is_ordered(turn):
                yield turn
                continue
            if plan is not None and plan.covers(turn):
                planned = plan.next(self._new)
                if planned is None:
                    return
                yield planned
                continue
            longest, seats = self._longest[self._batch(turn)], len(turn.match)
            if self._batch(turn) != batch:
                batch, group, before = self._batch(turn), -1, len(longest)
                alike = longest[0][0] == longest[-1][0]
                stride = 1.0 if alike else max(1.0, min(1 / share(), before / (seats * left)))
            if place >= len(longest) or self._ticket_in(longest, place).group != group:
                place = min(int((before - len(longest)) * (stride - 1)), len(longest) - 1)
                group = self._ticket_in(longest, place).group
                size = self._waiting[group]
                intact = size == self._added[group]
                if intact and SEVERAL_GROUPS * size <= credit * seats and size <= left * seats:
                    place = self._first_of(longest, place)
                else:
                    group = -1
            yield self._ticket_in(longest, place)

    def _new(self, number: int) -> Ticket | None:
        ticket = self._tickets.get(number)
        return ticket if ticket is not None and self._is_ordered(ticket) else None

    def _ticket_in(self, longest: Sequence[tuple[int, int]], place: int) -> Ticket:
        return self._tickets[longest[place][1]]

    def _first_of(self, longest: Sequence[tuple[int, int]], place: int) -> int:
        """The place of the first ticket of that one's group, which lie side by side."""
        group = self._ticket_in(longest, place).group
        while place and self._ticket_in(longest, place - 1).group == group:
            place -= 1
        return place

    def _turn(self) -> Ticket | None:
        """The ticket with the lowest number, of those that are tried again if any are; None if none waits."""
        while self._turns and not self._waits(*self._turns[0]):
            heapq.heappop(self._turns)
        return self._tickets[self._turns[0][1]] if self._turns else None

    def _batch(self, ticket: Ticket) -> int:
        return ticket.index // self._batch_groups

    def _waits(self, new: bool, number: int) -> bool:
        ticket = self._tickets.get(number)
        return ticket is not None and _is_new(ticket) is new

    def _is_ordered(self, ticket: Ticket) -> bool:
        """Returns whether a ticket's turn depends on its prediction."""
        return self._batch_groups > 0 and ticket.purpose is Purpose.TRAIN and _is_new(ticket)


def _by_length(ticket: Ticket) -> tuple[int, int]:
    """The place of a ticket in its batch's order: the longest prediction first, then the lowest number."""
    return -ticket.predicted_tokens, ticket.id


def _is_new(ticket: Ticket) -> bool:
    """Returns whether a ticket was never leased."""
    return ticket.attempt == 0
