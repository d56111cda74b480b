"""Group-relative advantages from scalars: no tensor is gathered for them (distributed advantage)."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Below this the rewards of a group are equal up to rounding, and its advantages are 0.
SMALLEST_DEVIATION = 1e-6
# Added to a group's deviation, so that rewards that hardly differ do not become large advantages; TRL's.
DEVIATION_MARGIN = 1e-4


def group_advantages(rewards: Sequence[float], kind: str) -> list[float]:
    """One advantage per member of a group.

    "mean": reward − mean. "grpo": that, divided by the group's standard deviation (DeepSeekMath, arXiv
    2402.03300, 4.1.2), of the sample (n − 1) and with a margin of 1e-4, as TRL and torch.std have it; all
    0 where every member got the same.
    """
    if not rewards:
        return []
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if kind == "mean":
        return centred
    squares = math.fsum(value * value for value in centred)
    deviation = math.sqrt(squares / max(1, len(centred) - 1))
    if deviation < SMALLEST_DEVIATION:
        return [0.0] * len(rewards)
    return [value / (deviation + DEVIATION_MARGIN) for value in centred]
