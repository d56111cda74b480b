"""The scheduler's spans: each traced ticket and the states that it went through; each switch.

A ticket's times are what this process saw: of one that was issued before a restart, from the restart on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from earl.config.run import RunConfig
from earl.obs import tracing
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state.switch_records import SwitchRecord
from services.scheduler.state.tickets import LIVE, Ticket, TicketState

# How often tickets that nobody named are looked after: those that were dropped.
SWEEP_NS = 1_000_000_000


@dataclass(slots=True)
class _TicketSpan:
    """A live ticket that is traced: its traceparent, since when it is known, and in this state; the attempt
    that it had as it was seen last."""

    parent: str
    began_ns: int
    state: str
    since_ns: int
    attempt: int = 0


class TicketTraces:
    """Records the spans of a ledger's tickets. Does nothing where nothing is traced."""

    def __init__(self, tables: LedgerTables, tickets: tracing.TracedTickets) -> None:
        self._tables = tables
        self._tickets = tickets
        self._on = tickets.fraction > 0
        self._live: dict[int, _TicketSpan] = {}
        self._next = 1
        self._swept_ns = 0
        if self._on:
            self._issued(tables.tickets)
            self._next = tables.run.next_ticket

    def parent(self, ticket_id: int) -> str:
        """The traceparent of a live ticket that `moved` has seen, "" if it is not traced: nothing is
        computed for it, which every lease of every ticket would pay."""
        span = self._live.get(ticket_id)
        return span.parent if span is not None else ""

    def moved(self, ids: Iterable[int] = ()) -> None:
        """Takes note that these tickets may have changed state. New tickets are found without being named."""
        if not self._on:
            return
        now_ns = time.time_ns()
        if self._tables.run.next_ticket > self._next:
            self._issued(range(self._next, self._tables.run.next_ticket))
            self._next = self._tables.run.next_ticket
        if now_ns - self._swept_ns >= SWEEP_NS:
            self._swept_ns, ids = now_ns, list(self._live)
        for number in ids:
            span = self._live.get(number)
            if span is not None:
                self._follow(number, span, self._tables.tickets.get(number), now_ns)

    def _issued(self, ids: Iterable[int]) -> None:
        now_ns = time.time_ns()
        for number in ids:
            ticket = self._tables.tickets.get(number)
            if ticket is not None and ticket.state in LIVE and (parent := self._tickets.parent(number)):
                # A ticket that is leased at once was pending for an instant.
                self._live[number] = _TicketSpan(parent, now_ns, TicketState.PENDING.value, now_ns)

    def _follow(self, number: int, span: _TicketSpan, ticket: Ticket | None, now_ns: int) -> None:
        state = ticket.state.value if ticket is not None else "closed"
        attempt = ticket.attempt if ticket is not None else 0
        # One that was given back and leased again in between is leased as before, for another attempt.
        again = state == span.state and attempt > span.attempt
        if state == span.state and not again:
            return
        ended = span.attempt if again else attempt
        tracing.record(f"ticket {span.state}", span.parent, span.since_ns, now_ns, {"attempt": ended})
        span.state, span.since_ns, span.attempt = state, now_ns, attempt
        if ticket is not None and ticket.state in LIVE:
            return
        del self._live[number]
        attributes: dict[str, str | int | float] = {
            "ticket": number,
            "outcome": ticket.bucket if ticket is not None else state,
        }
        if ticket is not None:
            attributes |= {"purpose": ticket.purpose.value, "group": ticket.group}
            if ticket.result is not None:
                attributes |= {"tokens": ticket.result.total_tokens, "reward": ticket.result.reward}
        tracing.record("ticket", span.parent, span.began_ns, now_ns, attributes, root=True)


def tickets_of(config: RunConfig) -> tracing.TracedTickets:
    """Returns the tickets that the run file has traced."""
    return tracing.TracedTickets(config.name, config.seed, config.obs.traced_fraction)


def record_switch(tickets: tracing.TracedTickets, stage: str, switch: SwitchRecord, end_ns: int) -> None:
    """Records a switch that has ended; its commands are spans below it."""
    figures = {name: getattr(switch, name) for name in ("reason", "rolled_back", "stall_s")}
    attributes = {"before": str(switch.former), "after": str(switch.target), **figures}
    parent, start_ns = tickets.switch(stage, switch.epoch), end_ns - int(switch.seconds * 1e9)
    tracing.record(f"switch {stage}", parent, start_ns, end_ns, attributes, root=True)
