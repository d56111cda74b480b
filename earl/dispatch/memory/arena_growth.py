"""The memory that an arena may grow to where contexts have no bound that somebody asked for."""

from __future__ import annotations

from earl.obs.limits import host_bytes

# Part of the machine's memory for one arena.
ARENA_SHARE = 1 / 8


def arena_growth(longest_bytes: int) -> int:
    """Bytes that an arena may take: those of the longest contexts, within its share of this machine."""
    return min(longest_bytes, int(ARENA_SHARE * host_bytes()))
