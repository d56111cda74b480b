"""Packs sequences that go through the model together, shared prefixes computed once.

    sequences ─ families (one prompt each) ─ chunks ≤ capacity ─ first fit ─► bins, each ordered by prompt

A bin's neighbours share what their prompts have in common: the answers to one prompt compute it once,
and prompts that begin alike (a system message) compute that once. Sums of gradients are the same; only
the order of additions differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from earl.models.common_prefix import common_prefix

# Shorter beginnings are not worth the extra rows that attention gathers.
SHORTEST_SHARED = 8


@dataclass(frozen=True, slots=True)
class Bin:
    """Sequences of one forward pass, in order. shared: of each, how many of its first tokens are those of
    the one before it, and are computed there."""

    chosen: list[int]
    shared: list[int]


def bins(
    chosen: Sequence[int],
    tokens_of: Callable[[int], np.ndarray],
    trained_from: Callable[[int], int],
    capacity: int,
    *,
    share: bool = True,
) -> list[Bin]:
    """The sequences `chosen`, each once, in bins of at most `capacity` tokens, shared ones counted fully:
    so what attention keeps is bounded too. A sequence longer than that has a bin of its own.

    tokens_of(i): its tokens. trained_from(i): position of its first trained token, at least 1. The position
    before that predicts a token of its own, so it is never shared.
    """
    if not share:
        packed = pack([len(tokens_of(i)) for i in chosen], capacity)
        return [Bin([chosen[k] for k in group], [0] * len(group)) for group in packed]
    prompts = {i: tokens_of(i)[: trained_from(i)].tobytes() for i in chosen}
    families: dict[bytes, list[int]] = {}
    for i in chosen:
        families.setdefault(prompts[i], []).append(i)
    chunks = [chunk for family in families.values() for chunk in _chunks(family, tokens_of, capacity)]
    sizes = [sum(len(tokens_of(i)) for i in chunk) for chunk in chunks]
    packed = [[i for c in group for i in chunks[c]] for group in pack(sizes, capacity)]
    return [_ordered(members, prompts, tokens_of, trained_from) for members in packed]


def _chunks(family: list[int], tokens_of: Callable[[int], np.ndarray], capacity: int) -> list[list[int]]:
    chunks: list[list[int]] = [[]]
    left = capacity
    for i in family:
        length = len(tokens_of(i))
        if chunks[-1] and length > left:
            chunks.append([])
            left = capacity
        chunks[-1].append(i)
        left -= length
    return chunks


def _ordered(
    members: list[int],
    prompts: dict[int, bytes],
    tokens_of: Callable[[int], np.ndarray],
    trained_from: Callable[[int], int],
) -> Bin:
    """The bin of `members` sorted by prompt: each then begins most like the one before it."""
    order = sorted(members, key=lambda i: prompts[i])
    shared = [0]
    for before, here in pairwise(order):
        most = trained_from(here) - 1
        if prompts[before] != prompts[here]:
            most = min(most, common_prefix(tokens_of(before), tokens_of(here)))
        shared.append(most if most >= SHORTEST_SHARED else 0)
    return Bin(order, shared)


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of what each bin holds: first-fit decreasing, at most `capacity` tokens each.

    What is longer than the capacity gets a bin of its own.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    bins: list[list[int]] = []
    left: list[int] = []
    first = 0  # bins before this one are too full for even the shortest
    shortest = min(lengths, default=0)
    for i in order:
        while first < len(bins) and left[first] < shortest:
            first += 1
        for b in range(first, len(bins)):
            if left[b] >= lengths[i]:
                break
        else:
            bins.append([])
            left.append(max(capacity, lengths[i]))
            b = len(bins) - 1
        bins[b].append(i)
        left[b] -= lengths[i]
    return bins


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A bin's packed rows. places: for each packed row, its place in the sequences laid end to end;
    positions int64[T]; first int64[B]: place that a sequence's row 0 would have."""

    places: np.ndarray
    positions: np.ndarray
    first: np.ndarray


def rows_of(lengths: Sequence[int], shared: Sequence[int]) -> PackedRows:
    """The rows of a bin's sequences without what they share: T = sum of lengths less sum of shared."""
    sizes, heads = np.asarray(lengths, np.int64), np.asarray(shared, np.int64)
    starts = np.cumsum(sizes) - sizes
    unshared_sizes = sizes - heads
    unshared_starts = np.cumsum(unshared_sizes) - unshared_sizes
    positions = np.arange(int(unshared_sizes.sum()), dtype=np.int64) - np.repeat(
        unshared_starts - heads, unshared_sizes
    )
    return PackedRows(positions + np.repeat(starts, unshared_sizes), positions, unshared_starts - heads)
