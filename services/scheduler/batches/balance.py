"""Distributes sequences over trainer ranks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balance(costs: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices of `costs` per rank: largest first to the least loaded (LPT, within 4/3 of the best).

    costs: tokens of each sequence. Deterministic; equal loads go to the rank with fewer sequences,
    then to the lower rank, so no rank is empty if there are at least as many sequences as ranks.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; a trainer group has at least 1")
    loads = [(0, 0, rank) for rank in range(ranks)]
    assigned: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        load, count, rank = heapq.heappop(loads)
        assigned[rank].append(index)
        heapq.heappush(loads, (load + costs[index], count + 1, rank))
    return [sorted(indices) for indices in assigned]
