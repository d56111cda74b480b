"""Live tickets as messages."""

from __future__ import annotations

import heapq

from earl.v1 import scheduler_pb2
from services.scheduler.codec_numbers import PURPOSES
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state.tickets import LIVE, Ticket, TicketState

STATES = {state: scheduler_pb2.TicketState.Value(f"TICKET_STATE_{state.name}") for state in LIVE}
MOST = 1000


def encode_tickets(tables: LedgerTables, limit: int, now: float) -> scheduler_pb2.ListTicketsResponse:
    """Lists of each state the `limit` tickets that have been in it longest, at most MOST."""
    by_state: dict[TicketState, list[Ticket]] = {state: [] for state in TicketState if state in LIVE}
    for ticket in tables.tickets.values():
        if ticket.state in LIVE:
            by_state[ticket.state].append(ticket)

    def place(ticket: Ticket) -> tuple[float, int]:
        return tables.state_since[ticket.id], ticket.id

    response = scheduler_pb2.ListTicketsResponse()
    for state, tickets in by_state.items():
        for ticket in heapq.nsmallest(min(limit, MOST), tickets, key=place):
            response.tickets.add(
                ticket_id=ticket.id,
                group_id=ticket.group,
                purpose=PURPOSES[ticket.purpose],
                evaluation=ticket.evaluation,
                environment=ticket.environment,
                state=STATES[state],
                attempt=ticket.attempt,
                worker=ticket.worker,
                tokens=ticket.result.total_tokens if ticket.result else 0,
                age_s=max(0.0, now - tables.state_since[ticket.id]),
            )
    return response
