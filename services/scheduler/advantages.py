"""Group-relative advantages from scalars: no tensor is gathered for them (distributed advantage)."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Below this the rewards of a group are equal up to rounding, and its advantages are 0.
SMALLEST_DEVIATION = 1e-6


def group_advantages(rewards: Sequence[float], kind: str) -> list[float]:
    """One advantage per member of a group.

    "mean": reward − mean. "grpo": that, divided by the group's population standard deviation
    (DeepSeekMath, arXiv 2402.03300, 4.1.2); all 0 where every member got the same.
    """
    if not rewards:
        return []
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if kind == "mean":
        return centred
    deviation = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    if deviation < SMALLEST_DEVIATION:
        return [0.0] * len(rewards)
    return [value / deviation for value in centred]
