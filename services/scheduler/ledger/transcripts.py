"""Chooses the episodes whose conversations are requested. Pure.

Requested are those of the first `scheduler.transcripts` trajectories of each training batch, so that the
members of a group are seen side by side, and of as many episodes of each evaluation, spread evenly. The
choice follows from the place of an episode alone, so every evaluation shows the same instances. Conversations
never go to Redis.
"""

from __future__ import annotations

from functools import cache

from services.scheduler.state.mixture import group_size_at
from services.scheduler.state.rules import Rules
from services.scheduler.state.tickets import Purpose


def is_chosen(position: int, total: int, count: int) -> bool:
    """Returns whether position (from 0) of `total` is among `count` that are spread evenly over them."""
    if count < 2 or total < 2:
        return count > 0 and position == 0
    return position in _places(total, min(count, total))


@cache
def _places(total: int, count: int) -> frozenset[int]:
    """`count` > 1 positions, spread evenly over `total`."""
    return frozenset(round(index * (total - 1) / (count - 1)) for index in range(count))


def is_requested(rules: Rules, purpose: Purpose, index: int, member: int, episodes: int) -> bool:
    """Returns whether the ticket of this member of the purpose's index-th group carries the request.

    episodes: of its evaluation. A training batch is counted as `batch_groups` groups in the order of their
    issue; which groups a batch really takes may differ by a few. Where a group may be trained without some of
    its members, nobody knows which: all of a group carry the request, and it counts with the fewest that may
    be trained. What exceeds `transcripts` of a batch is not kept.
    """
    if purpose is Purpose.EVALUATE:
        return is_chosen(index, episodes, rules.transcripts)
    if purpose is not Purpose.TRAIN:
        return False
    least = rules.min_group_size
    place, earlier = 0 if least or rules.extra_episodes else member, index - index % rules.batch_groups
    while place < rules.transcripts and earlier < index:
        size = group_size_at(rules, purpose, earlier)
        place += min(least or size, size)
        earlier += 1
    return place < rules.transcripts
