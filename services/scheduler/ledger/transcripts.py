"""Which episodes are asked for their conversation. Pure.

Asked are `scheduler.transcripts` trajectories of each training batch and episodes of each evaluation:
the first, the last, and the rest evenly between. The choice follows from the place of an episode
alone, so every evaluation shows the same instances. Conversations never go to Redis.
"""

from __future__ import annotations

from functools import cache

from services.scheduler.state.records import Purpose


def chosen(position: int, total: int, count: int) -> bool:
    """Whether the `position`-th (from 0) of `total` is among `wanted` that are spread evenly over them."""
    if count < 2 or total < 2:
        return count > 0 and position == 0
    return position in _places(total, min(count, total))


@cache
def _places(total: int, count: int) -> frozenset[int]:
    """`count` > 1 positions, spread evenly over `total`."""
    return frozenset(round(index * (total - 1) / (count - 1)) for index in range(count))


def asked(
    purpose: Purpose,
    index: int,
    member: int,
    *,
    batch_groups: int,
    group_size: int,
    episodes: int,
    wanted: int,
) -> bool:
    """Whether the ticket of this member of the purpose's index-th group carries the request.

    A training batch is counted as `batch_groups` groups in the order of their issue; which groups a
    batch really takes may differ by a few.
    """
    if purpose is Purpose.EVALUATE:
        return chosen(index, episodes, wanted)
    if purpose is Purpose.TRAIN:
        return chosen((index % batch_groups) * group_size + member, batch_groups * group_size, wanted)
    return False
