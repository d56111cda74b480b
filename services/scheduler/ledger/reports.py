"""A report of a finished attempt: is it the caller's, can it be used, was it accepted before? Pure.

report ─► refusal: whose attempt is it? ─► unlike_match: of all seats? ─► fault_of: can it be used?
             └─► is_accepted: the same report again
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state.rules import Rules
from services.scheduler.state.tickets import (
    BATCHED,
    MAY_TRAIN,
    Attempt,
    EpisodeEnding,
    EpisodeResult,
    Purpose,
    Reason,
    Ticket,
    TicketState,
)

# States of a ticket whose attempt was accepted.
DONE = BATCHED | {TicketState.EVALUATED}
# Reasons for which a ticket is dropped whose attempt was accepted.
LEFT_OUT = frozenset({Reason.TRUNCATED, Reason.NO_SIGNAL})


def refusal(tables: LedgerTables, name: str, incarnation: int, attempt: Attempt) -> str:
    """Returns why this attempt is not the caller's to renew or complete; empty if it is."""
    ticket = tables.tickets.get(attempt.ticket_id)
    if ticket is None:
        known = 0 < attempt.ticket_id < tables.run.next_ticket
        return f"ticket {attempt.ticket_id} is {'closed' if known else 'unknown'}"
    if (ticket.worker, ticket.incarnation) != (name, incarnation):
        return f"ticket {ticket.id} is not leased to {name} ({incarnation:x})"
    if attempt.fence != ticket.fence or attempt.attempt != ticket.attempt:
        return f"fence {attempt.fence} is not the current {ticket.fence}"
    if ticket.state is not TicketState.LEASED:
        return f"ticket {ticket.id} is {ticket.state}{f' ({ticket.reason})' if ticket.reason else ''}"
    return ""


def is_accepted(tables: LedgerTables, attempt: Attempt) -> bool:
    """Returns whether the outcome of this attempt was accepted before."""
    ticket = tables.tickets.get(attempt.ticket_id)
    return (
        ticket is not None
        and (ticket.state in DONE or ticket.reason in LEFT_OUT)
        and Attempt(ticket.id, ticket.attempt, ticket.fence) == attempt
    )


def fault_of(rules: Rules, ticket: Ticket, result: EpisodeResult, newest_version: int) -> str:
    """Returns why a result cannot be used; empty if it can. newest_version: of the run."""
    if result.ending not in MAY_TRAIN:
        return f"{result.ending}: {result.message}"
    if not math.isfinite(result.reward):
        return f"reward is {result.reward}: an environment's reward must be finite"
    sampled = {result.oldest_version, result.newest_version} if result.trained_tokens else set()
    exact = rules.deterministic and ticket.purpose is not Purpose.WARMUP
    if exact and sampled - {ticket.min_version}:
        return f"versions {sorted(sampled)} sampled it, not {ticket.min_version} alone"
    if ticket.purpose is Purpose.EVALUATE:
        return ""
    if not result.descriptor_key or result.total_tokens < 1:
        return f"no columns: key {result.descriptor_key!r}, {result.total_tokens} tokens"
    if result.trained_tokens and result.newest_version > newest_version > 0:
        return f"version {result.newest_version} was rolled back to {newest_version}"
    return ""


def unlike_match(ticket: Ticket, attempts: Sequence[Attempt]) -> str:
    """Returns why these are not the reports of all seats of the ticket's match; empty if they are."""
    if sorted(attempt.ticket_id for attempt in attempts) == list(ticket.match):
        return ""
    match = ticket.match
    return f"tickets {match.start} to {match.stop - 1} are one match, and reported together"


def is_broken(result: EpisodeResult) -> bool:
    """Returns whether the instance itself is to blame for how an attempt ended."""
    return result.ending is EpisodeEnding.ENV_ERROR or not math.isfinite(result.reward)
