"""Writes fields of tickets in place, for the ledger's tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from services.scheduler.state.tickets import Ticket, TicketState


def derive_state(ticket: Ticket, planned: bool, trained: bool) -> None:
    """The state of one that was ready when its record was stored, or that was stored again since."""
    if trained or ticket.state is TicketState.TRAINED:
        set_fields(ticket, {"state": TicketState.TRAINED, "result": None})
    else:
        set_fields(ticket, {"state": TicketState.PLANNED if planned else TicketState.READY})


def set_fields(ticket: Ticket, fields: Mapping[str, Any]) -> None:
    """Sets fields of a ticket in place: every part of the ledger that holds it sees the change."""
    for name, value in fields.items():
        structs.force_setattr(ticket, name, value)
