"""Notes what happens to tickets and versions, in its order, for the run's history (`earl.history.format`).

The ledger's records tell what is; this tells how it came about. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from earl.history.format import (
    BATCH,
    COMMIT,
    DISSOLVE,
    ISSUED,
    PUBLISH,
    RECONCILE,
    RECONCILED,
    REPLAY,
    REPLAYED,
    Event,
)
from earl.ticket_ranges import RangeSet
from services.scheduler.state.run import Batch
from services.scheduler.state.tickets import Purpose, Ticket, TicketState


class TransitionLog:
    """Events since the last `take`."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def take(self) -> Sequence[Event]:
        """Returns the events since the last call."""
        events, self._events = self._events, []
        return events

    def admitted(self, tickets: Sequence[Ticket]) -> None:
        """New tickets: those of one group, pending, with successive ids; or replays, planned."""
        first = tickets[0] if tickets else None
        if first is None:
            return
        if first.purpose is Purpose.REPLAY:
            self._events += [[REPLAY, each.id, each.group, each.source, each.attempt] for each in tickets]
            return
        self._events.append(
            [ISSUED, first.id, len(tickets), first.group, str(first.purpose), first.min_version]
        )

    def moved(self, ticket: Ticket) -> None:
        """A ticket came into another state."""
        state = ticket.state
        replayed = state is TicketState.TRAINED and ticket.purpose is Purpose.REPLAY
        event: list[Any] = [REPLAYED if replayed else str(state), ticket.id]
        if state is TicketState.LEASED:
            event += [ticket.attempt, ticket.fence, ticket.worker, ticket.incarnation]
        elif state is TicketState.READY:
            event += [ticket.attempt, ticket.floor]
        elif state is TicketState.DROPPED:
            event.append(str(ticket.reason))
        self._events.append(event)

    def planned(self, batch: Batch) -> None:
        """The tickets that were planned last are this batch."""
        self._events.append([BATCH, batch.id, batch.version, str(batch.purpose)])

    def committed(self, batch: Batch) -> None:
        """The tickets that were trained last are this batch."""
        self._events.append([COMMIT, batch.id, batch.version + 1])

    def dissolved(self, batch: Batch) -> None:
        self._events.append([DISSOLVE, batch.id])

    def published(self, version: int) -> None:
        self._events.append([PUBLISH, version])

    def reconciling(self, version: int, consumed: RangeSet, trainer: str, incarnation: int) -> None:
        """A trainer starts at a version; `reconciled` comes after all that this changes."""
        self._events.append([RECONCILE, version, list(consumed.ranges), trainer, incarnation])

    def reconciled(self, version: int) -> None:
        self._events.append([RECONCILED, version])


def snapshot(
    tickets: Iterable[Ticket], closed: Iterable[tuple[str, RangeSet]], batch: Batch | None, version: int,
    published: int, fence: int, next_ticket: int,
) -> dict[str, Any]:  # fmt: skip
    """The state that a segment of the history begins with."""
    return {
        "version": version,
        "published": published,
        "fence": fence,
        "next_ticket": next_ticket,
        "batch": [batch.id, batch.version] if batch is not None else None,
        "tickets": [
            [
                each.id, str(each.state), each.group, str(each.purpose), each.attempt, each.floor,
                str(each.reason),
            ]
            for each in tickets
        ],
        "closed": {bucket: list(ids.ranges) for bucket, ids in closed},
    }  # fmt: skip
