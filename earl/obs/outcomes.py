"""Tells whether a run's episodes are won or lost, or have only a score as reward. Pure."""

from __future__ import annotations

from collections.abc import Iterable

# What games report besides the reward: as numbers of an evaluation, and as rates of a batch. A batch's
# "loss" is the trainer's.
_OF_EVALUATIONS = frozenset({"win", "loss", "draw"})
_OF_BATCHES = frozenset({"loss_rate", "draw_rate"})


def has_winners(batch: Iterable[str], evaluation: Iterable[str]) -> bool:
    """Tells from the names of a batch's metrics and an evaluation's numbers if episodes are won or lost."""
    return not _OF_BATCHES.isdisjoint(batch) or not _OF_EVALUATIONS.isdisjoint(evaluation)
