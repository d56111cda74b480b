"""Readings of a group of training: whether it is full, may be closed, or has a signal; and which tickets are
one episode. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state.mixture import group_size_at
from services.scheduler.state.rules import Rules
from services.scheduler.state.tickets import Purpose, Ticket

# Rewards of a group that differ by less are equal up to rounding: all its advantages would be 0.
SMALLEST_SPREAD = 1e-6


def is_full(rules: Rules, tables: LedgerTables, ticket: Ticket) -> bool:
    """Returns whether so many of the ticket's group are ready that its other episodes are extra.

    The run file may have had other extra_episodes when the group was issued.
    """
    if ticket.purpose is not Purpose.TRAIN:
        return False
    size = group_size_at(rules, Purpose.TRAIN, ticket.index)
    return size <= tables.ready[ticket.group] < len(tables.groups[Purpose.TRAIN][ticket.group])


def may_close(rules: Rules, tables: LedgerTables, group: int) -> bool:
    """Returns whether a group that is not complete has min_group_size episodes that are ready.

    Where groups without a signal are replaced, it needs one: what is played yet may give it.
    """
    numbers = tables.groups[Purpose.TRAIN][group]
    least = rules.min_group_size * len(tables.tickets[numbers[0]].match)
    if not 0 < least <= tables.ready[group] < len(numbers):
        return False
    return not rules.resample or has_signal(map(tables.tickets.__getitem__, numbers))


def count_missing(tables: LedgerTables, group: int) -> int:
    """Tickets of a group of training that are not ready."""
    return len(tables.groups[Purpose.TRAIN][group]) - tables.ready[group]


def can_spare(rules: Rules, tables: LedgerTables, ticket: Ticket) -> bool:
    """Returns whether the ticket's group may be trained without its episode: with min_group_size others, or
    with a whole group of others where that is 0."""
    if ticket.purpose is not Purpose.TRAIN:
        return False
    least = rules.min_group_size * len(ticket.match) or group_size_at(rules, Purpose.TRAIN, ticket.index)
    return least < len(tables.groups[Purpose.TRAIN][ticket.group])


def has_signal(members: Iterable[Ticket], score_coefficient: float = 0.0) -> bool:
    """Returns whether the rewards of any seat differ, so that some advantage is not 0.

    score_coefficient: of the reward model's scores.
    """
    rewards: dict[int, list[float]] = {}
    for member in members:
        if member.result is not None:
            rewards.setdefault(member.seat, []).append(member.result.trained_reward(score_coefficient))
    return any(max(values) - min(values) >= SMALLEST_SPREAD for values in rewards.values())


def episode_places(tables: LedgerTables, numbers: Sequence[int]) -> list[list[int]]:
    """The places in `numbers`, of tickets, that belong to one episode each: the seats of a match together."""
    places: dict[tuple[str, int], list[int]] = {}
    for place, number in enumerate(numbers):
        ticket = tables.tickets.get(number)
        key = ("ticket", place)
        if ticket is not None and ticket.seats > 1:
            key = ("match", ticket.match.start)
        places.setdefault(key, []).append(place)
    return list(places.values())
