"""A worker's attempts, and when their leases are to be renewed. Pure: monotonic time is an argument."""

from __future__ import annotations

from collections.abc import Iterable

from services.rollout.worker.ticket import EpisodeTicket

# A lease is renewed when this fraction of it has passed, so that two renewals may fail.
RENEW_FRACTION = 1 / 3


class Leases:
    """The episodes that a worker holds: from their lease until the scheduler has their report.

    capacity: how many at once; a match is one of them. contexts: how many the engines hold at once, of which
    an episode takes one for each seat that they play; 0 if they bound nothing. seats: the most of an episode.
    """

    def __init__(self, capacity: int, contexts: int = 0, seats: int = 1) -> None:
        self.capacity = capacity
        self._contexts = contexts
        self._begun = capacity, contexts
        self._seats = seats
        self._held: dict[tuple[int, int], tuple[EpisodeTicket, float]] = {}
        # The largest of all tickets that were ever held.
        self.newest_fence = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, ticket: EpisodeTicket) -> bool:
        held = self._held.get(ticket.key)
        return held is not None and held[0].fence == ticket.fence

    @property
    def free(self) -> int:
        """Returns how many more episodes the worker can take, whichever they are: its credit.

        An idle worker takes one, even if that has more seats than the engines hold contexts.
        """
        free = self.capacity - len(self._held)
        if self._contexts:
            taken = sum(ticket.contexts for ticket, _ in self._held.values())
            free = min(free, (self._contexts - taken) // self._seats)
        return max(free, 0 if self._held else 1)

    def scale(self, engines: float) -> None:
        """Bounds the episodes by so many times the engines of the beginning, where engines bound them."""
        if self._contexts:
            self.capacity, self._contexts = (max(1, int(engines * bound)) for bound in self._begun)

    def take(self, ticket: EpisodeTicket, now_s: float) -> None:
        """Holds the ticket, whose lease began or was renewed at now_s."""
        self._held[ticket.key] = ticket, now_s + ticket.lease_s * RENEW_FRACTION
        self.newest_fence = max(self.newest_fence, *(seat.fence for seat in ticket.seats))

    def give_up(self, ticket: EpisodeTicket) -> None:
        """Drops a ticket that was reported or lost; nothing if it is not held."""
        if ticket in self:
            del self._held[ticket.key]

    def due(self, now_s: float) -> list[EpisodeTicket]:
        """Attempts to renew now. They count as due again after the next fraction of their lease."""
        due = [ticket for ticket, due_s in self._held.values() if due_s <= now_s]
        for ticket in due:
            self.take(ticket, now_s)
        return due

    def make_due(self, now_s: float) -> None:
        """Lets every attempt be renewed now, whenever its lease would have asked for it."""
        self._held = {key: (ticket, now_s) for key, (ticket, _) in self._held.items()}

    def next_due_s(self) -> float | None:
        """Monotonic time of the earliest renewal; None if nothing is held."""
        return min((due_s for _, due_s in self._held.values()), default=None)

    def lost(self, refs: Iterable[tuple[int, int, int]]) -> list[EpisodeTicket]:
        """The held episodes of which the scheduler took any seat, (ticket_id, attempt, fence), away."""
        lost = set(refs)
        if not lost:
            return []
        return [
            ticket
            for ticket, _ in self._held.values()
            if any((*seat.key, seat.fence) in lost for seat in ticket.seats)
        ]
