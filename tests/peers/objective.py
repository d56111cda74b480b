"""EARL's objective on the trajectories of tests/peers/cases.py, and how it is held against TRL's answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from services.scheduler.batches.advantages import group_advantages
from services.trainer.model.losses import STAT_NAMES, PolicyGradient, policy_gradient
from services.trainer.step.advantages import per_token, token_weights

TOLERANCE = 1e-5
MEANS = {"bnpo": "token", "dapo": "token", "grpo": "sequence", "dr_grpo": "constant"}


def advantages_of(request: dict[str, Any], settings: dict[str, Any]) -> list[float]:
    """One per trajectory, group by group."""
    kind = "mean" if settings.get("scale_rewards") == "none" else "grpo"
    size, rewards = request["group_size"], request["rewards"]
    groups = [rewards[first : first + size] for first in range(0, len(rewards), size)]
    return [value for group in groups for value in group_advantages(group, kind)]


def objective_settings(settings: dict[str, Any]) -> PolicyGradient:
    return PolicyGradient(
        settings["epsilon"],
        settings["epsilon_high"],
        entropy_coefficient=settings["entropy_coef"],
        kl_coefficient=settings["beta"],
        truncated=settings["cap"] > 0.0,
        importance_cap=settings["cap"],
    )


def ours(request: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The keys of TRL's answer, from given log-probs: advantages, loss, gradient, metrics."""
    given, masks = request["given"], request["mask"]

    def trained(rows: list[list[float]]) -> torch.Tensor:
        """float32[N]: the values of trained tokens, row after row."""
        kept = [np.asarray(row)[np.asarray(mask, bool)] for row, mask in zip(rows, masks, strict=True)]
        return torch.from_numpy(np.concatenate(kept).astype(np.float32))

    counts = [sum(mask) for mask in masks]
    advantages = advantages_of(request, settings)
    mean, corrected = MEANS[settings["loss_type"]], settings["cap"] > 0.0
    weights = token_weights(counts, mean, sum(counts), len(counts), settings.get("normaliser", 0))
    logprobs = trained(given["logprobs"]).requires_grad_()
    result = policy_gradient(
        logprobs,
        trained(given["entropy"]),
        trained(request["sampler"] if corrected else given["old"]),
        torch.from_numpy(per_token(advantages, counts)),
        torch.from_numpy(weights),
        objective_settings(settings),
        reference=trained(given["reference"]) if settings["beta"] else None,
        start=trained(given["old"]) if corrected else None,
        shares=torch.full((sum(counts),), 1.0 / sum(counts)),
    )
    result.loss.backward()
    assert logprobs.grad is not None
    return {
        "advantages": advantages,
        "loss": result.loss.item(),
        "gradient": logprobs.grad.tolist(),
        "metrics": dict(zip(STAT_NAMES, result.stats.tolist(), strict=True)),
    }


def check(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """AssertionError where EARL's numbers and TRL's differ by more than TOLERANCE."""
    for key in ("advantages", "loss", "gradient"):
        np.testing.assert_allclose(mine[key], theirs[key], rtol=TOLERANCE, atol=TOLERANCE, err_msg=key)
    for key, value in theirs["metrics"].items():
        np.testing.assert_allclose(mine["metrics"][key], value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=key)
