"""Whether episodes of a run are won or lost; elsewhere a reward is a score. Pure."""

from __future__ import annotations

from collections.abc import Iterable

# What games give beside the reward: as numbers of an evaluation, and as rates of a batch. A batch's "loss" is
# the trainer's.
_OF_EVALUATIONS = frozenset({"win", "loss", "draw"})
_OF_BATCHES = frozenset({"loss_rate", "draw_rate"})


def has_winners(batch: Iterable[str], evaluation: Iterable[str]) -> bool:
    """From the names of a batch's metrics, and of the numbers that the environment gave in evaluations."""
    return not _OF_BATCHES.isdisjoint(batch) or not _OF_EVALUATIONS.isdisjoint(evaluation)
