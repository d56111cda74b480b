"""The outcome of a group that a curriculum goes by."""

from __future__ import annotations

import msgspec


class GroupOutcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The successes of one group. thousandths: of successes, out of 1000 for each of its episodes.

    environment: the label of its tickets. trained: it was trained; otherwise replaced for want of signal.
    """

    environment: str
    task: int
    thousandths: int
    episodes: int
    trained: bool


# The groups of one step of training.
StepOutcomes = tuple[GroupOutcome, ...]
