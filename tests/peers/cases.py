"""Trajectories and settings that EARL's objective and TRL's are compared on.

A request is plain JSON, rows are trajectories: prompts, completions (ids), mask (1 where a token is
trained; 0 within a completion is what an environment said), sampler (the engine's log-probs), rewards,
group_size; `given`, for the formulas alone, per completion token: logprobs (after an update), old (before
it), reference, entropy. cases: settings by name, see `settings`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

GROUPS, GROUP_SIZE = 3, 4
VOCABULARY = 20  # beside the special tokens
FIRST_WORD = 4


def settings(
    loss_type: str,
    *,
    epsilon: float = 0.2,
    epsilon_high: float = 0.2,
    beta: float = 0.0,
    cap: float = 0.0,
    entropy_coef: float = 0.0,
    **others: Any,
) -> dict[str, Any]:
    """One case. cap: of truncated importance sampling; 0: off. others: normaliser, scale_rewards; level: of
    the ratio, "sequence" for GSPO; delta: the bound of dual clip."""
    named = {"epsilon": epsilon, "epsilon_high": epsilon_high, "beta": beta, "cap": cap}
    return {"loss_type": loss_type, **named, "entropy_coef": entropy_coef, **others}


def cases() -> dict[str, dict[str, Any]]:
    return {
        "token mean (bnpo)": settings("bnpo"),
        "token mean (dapo), unequal clip": settings("dapo", epsilon=0.1, epsilon_high=0.28),
        "sequence mean (grpo)": settings("grpo"),
        "constant (dr_grpo)": settings("dr_grpo", normaliser=16, scale_rewards="none"),
        "KL": settings("bnpo", beta=0.1),
        "KL, sequence mean": settings("grpo", beta=0.1),
        "entropy bonus": settings("bnpo", entropy_coef=0.05),
        "truncated importance": settings("bnpo", cap=1.5),
        "truncated importance, KL, sequence mean": settings("grpo", cap=1.2, beta=0.05),
        "truncated importance, KL, constant": settings("dr_grpo", cap=1.2, beta=0.05, normaliser=16),
        "CISPO": settings("cispo", epsilon_high=1.28),
        "GSPO": settings("grpo", level="sequence", epsilon=0.05, epsilon_high=0.1),
        "dual clip": settings("bnpo", delta=1.4),
    }


def trajectories(seed: int = 0) -> dict[str, Any]:
    """Ragged trajectories with what an environment said in between; a group of equal rewards among them."""
    draw = np.random.default_rng(seed)
    count = GROUPS * GROUP_SIZE

    def words(length: int) -> list[int]:
        return draw.integers(FIRST_WORD, FIRST_WORD + VOCABULARY, length).tolist()

    completions = [words(int(draw.integers(3, 12))) for _ in range(count)]
    mask = [[1, *(draw.random(len(row) - 1) < 0.8).astype(int).tolist()] for row in completions]
    rewards = draw.choice([0.0, 0.25, 0.5, 1.0], count)
    rewards[:GROUP_SIZE] = 0.3
    return {
        "prompts": [words(int(draw.integers(2, 6))) for _ in range(count)],
        "completions": completions,
        "mask": mask,
        "sampler": [(-3 * draw.random(len(row))).round(6).tolist() for row in completions],
        "rewards": rewards.tolist(),
        "group_size": GROUP_SIZE,
    }


def with_given(request: dict[str, Any], seed: int = 1) -> dict[str, Any]:
    """The request with log-probs and entropies that no model made: ratios far from 1 in both directions."""
    draw = np.random.default_rng(seed)

    def near(rows: list[list[float]], spread: float) -> list[list[float]]:
        moved = [np.asarray(row) + spread * draw.normal(size=len(row)) for row in rows]
        return [np.minimum(row, -1e-3).round(6).tolist() for row in moved]

    old = near(request["sampler"], 0.3)
    given = {
        "old": old,
        "logprobs": near(old, 0.3),
        "reference": near(old, 0.5),
        "entropy": [(3 * draw.random(len(row))).round(6).tolist() for row in request["completions"]],
    }
    return {**request, "given": given}
