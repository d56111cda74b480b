"""Every seed of a run, derived from the run's own seed: the same run file gives the same tickets.

A seed depends on what a ticket is for (purpose, place in the schedule, member of its group, substitute)
and on nothing that happened: not on its id, its attempts, its worker, or how often the run was resumed.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
# Environments see 32 bits; evaluation has the upper half, so training never meets its seeds.
EVALUATION_BIT = 1 << 31


def splitmix64(value: int) -> int:
    """One step of the SplitMix64 generator (Steele, Lea, Flood 2014): 64 well-mixed bits of `value`."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def derive(seed: int, *words: int | str) -> int:
    """64 bits of (seed, words), for example derive(7, "env", "train", 12)."""
    return _mixed(splitmix64(seed), *words)


def _mixed(state: int, *words: int | str) -> int:
    for word in words:
        number = int.from_bytes(word.encode()[:8], "little") if isinstance(word, str) else word
        state = splitmix64(state ^ (number & MASK))
    return state


def env_seed(seed: int, purpose: str, index: int, take: int = 0) -> int:
    """Seed of the environment for the index-th group of a purpose, below 2**32.

    take: 0 for the instance itself, n for its n-th substitute (see TicketAttempts.fail). Evaluation seeds
    depend on the index alone: every evaluation of a run meets the same instances.
    """
    low = derive(seed, "env", purpose, index, *_substitute(take)) & (EVALUATION_BIT - 1)
    return low | EVALUATION_BIT if purpose == "evaluate" else low


def sample_seeds(seed: int, purpose: str, index: int, members: int, take: int = 0) -> list[int]:
    """Seeds of the sampler for the members of a group, each below 2**63."""
    group = derive(seed, "sample", purpose, index)
    return [_mixed(group, member, *_substitute(take)) >> 1 for member in range(members)]


def _substitute(take: int) -> tuple[int, ...]:
    return (take,) if take else ()
