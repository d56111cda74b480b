"""Generated lengths of a run's episodes, epoch by epoch. Deterministic.

    length = environment's median · e^(task) · growth^epoch · e^(task in this epoch) · e^(sample)

All four are normal in the logarithm, so lengths are long-tailed; they end at MOST_TOKENS, as in a run with a
bound of the context. How much tasks change between epochs is set by what it does to their ranks: RhymeRL
(arXiv 2508.18588) saw ranks change by 2 to 4 % from one epoch to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

MOST_TOKENS = 32_768
# Medians of the responses of three environments, and the share of tasks of each.
MEDIANS, SHARES = (1500, 4000, 7000), (0.25, 0.5, 0.25)
# Standard deviations of the logarithm: between tasks of an environment, and between responses to one prompt.
TASK_SPREAD, SAMPLE_SPREAD = 0.7, 0.2
# Prompts: median and spread, and how much their logarithm follows that of the responses.
PROMPT_MEDIAN, PROMPT_SPREAD, PROMPT_SHARE = 400, 0.5, 0.3


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """Sequences of one step in the order of their tickets; int arrays of a number for each, lengths in
    tokens. Those of a group follow one another."""

    environment: np.ndarray
    task: np.ndarray
    prompts: np.ndarray
    responses: np.ndarray


@dataclass(frozen=True, slots=True)
class LengthTrace:
    """epochs: of each, its batches. rank_change: by how much the rank of a task among all changes from one
    epoch to the next, over their number, in the mean; a task's rank is that of its mean length."""

    epochs: tuple[tuple[SequenceBatch, ...], ...]
    group_size: int
    rank_change: float


def generated(
    seed: int,
    *,
    epochs: int,
    steps: int,
    batch_groups: int,
    group_size: int,
    rank_change: float,
    growth: float,
) -> LengthTrace:
    """A trace of so many epochs, with so many steps in each.

    rank_change: between epochs, as nearly as possible. growth: factor of all lengths between epochs.
    """
    draw = np.random.default_rng(seed)
    tasks = steps * batch_groups
    environment = draw.choice(len(MEDIANS), tasks, p=SHARES)
    task = TASK_SPREAD * draw.standard_normal(tasks)
    prompt_log = PROMPT_SHARE * task + PROMPT_SPREAD * draw.standard_normal(tasks)
    prompts = np.maximum(8, PROMPT_MEDIAN * np.exp(prompt_log)).astype(int)
    drifts = draw.standard_normal((epochs, tasks))
    samples = SAMPLE_SPREAD * draw.standard_normal((epochs, tasks, group_size))
    orders = [draw.permutation(tasks) for _ in range(epochs)]
    steady = np.log(np.asarray(MEDIANS, float)[environment]) + task

    def responses(drift: float) -> np.ndarray:
        grown = np.log(growth) * np.arange(epochs)[:, None]
        logarithm = (steady + grown + drift * drifts)[:, :, None] + samples
        return np.clip(np.exp(logarithm), 1, MOST_TOKENS).astype(int)

    lengths = responses(_drift(lambda drift: rank_change_of(responses(drift)), rank_change))
    batches = tuple(
        tuple(_batch(environment, prompts, lengths[epoch], part) for part in np.split(orders[epoch], steps))
        for epoch in range(epochs)
    )
    return LengthTrace(batches, group_size, rank_change_of(lengths))


def rank_change_of(lengths: np.ndarray) -> float:
    """The mean change of a task's rank between neighbouring epochs, over the number of tasks. lengths: in
    tokens (epochs, tasks, samples)."""
    ranks = np.argsort(np.argsort(lengths.mean(axis=2), axis=1, kind="stable"), axis=1)
    return float(np.abs(np.diff(ranks, axis=0)).mean() / lengths.shape[1])


def _batch(
    environment: np.ndarray, prompts: np.ndarray, lengths: np.ndarray, tasks: np.ndarray
) -> SequenceBatch:
    size = lengths.shape[1]
    return SequenceBatch(
        np.repeat(environment[tasks], size),
        np.repeat(tasks, size),
        np.repeat(prompts[tasks], size),
        lengths[tasks].reshape(-1),
    )


def _drift(change_of: Callable[[float], float], rank_change: float) -> float:
    """The spread of tasks between epochs that changes ranks by so much; 0 where samples alone change them
    more. change_of: the change of ranks at a spread."""
    low, high = 0.0, 4.0
    for _ in range(12):
        middle = (low + high) / 2
        if change_of(middle) < rank_change:
            low = middle
        else:
            high = middle
    return low


def joined(batches: Sequence[SequenceBatch]) -> SequenceBatch:
    """All sequences of some batches, in order."""
    names = ("environment", "task", "prompts", "responses")
    return SequenceBatch(*(np.concatenate([getattr(batch, name) for batch in batches]) for name in names))
