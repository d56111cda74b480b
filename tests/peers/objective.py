"""EARL's objective on the trajectories of tests/peers/cases.py, and how it is held against TRL's answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from earl.fragments.advantages import ADVANTAGES, GroupOutcomes
from earl.fragments.losses import LOSSES
from earl.fragments.weights import WEIGHTS
from services.trainer.model.losses import STAT_NAMES, PolicyGradient, policy_gradient
from services.trainer.step.token_weights import token_weights

TOLERANCE = 1e-5
MEANS = {
    "bnpo": "token", "dapo": "token", "cispo": "token", "grpo": "sequence", "dr_grpo": "constant",
}  # fmt: skip


def advantages_of(request: dict[str, Any], settings: dict[str, Any]) -> list[float]:
    """One per trajectory, group by group."""
    fragment = ADVANTAGES["mean" if settings.get("scale_rewards") == "none" else "grpo"]
    size, rewards = request["group_size"], request["rewards"]
    counts = [sum(mask) for mask in request["mask"]]
    groups = [
        GroupOutcomes(tuple(rewards[first : first + size]), tuple(counts[first : first + size]))
        for first in range(0, len(rewards), size)
    ]
    return [value for values in fragment(groups) for value in values]


def objective_settings(settings: dict[str, Any]) -> PolicyGradient:
    name = "dual-clip" if "delta" in settings else "gspo" if "level" in settings else "clip"
    name = "cispo" if settings["loss_type"] == "cispo" else name
    # TRL's upper bound of CISPO is that of the ratio itself.
    above = 1.0 if name == "cispo" else 0.0
    return PolicyGradient(
        settings["epsilon"],
        settings["epsilon_high"] - above,
        loss_name=name,
        loss=LOSSES[name],
        dual_clip=settings.get("delta", 3.0),
        entropy_coefficient=settings["entropy_coef"],
        kl_coefficient=settings["beta"],
        weight_name="truncated" if settings["cap"] > 0.0 else "behaviour",
        weight=WEIGHTS["truncated"] if settings["cap"] > 0.0 else None,
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
    ratios = (logprobs.detach() - trained(given["old"])).split(counts)
    result = policy_gradient(
        logprobs,
        trained(given["entropy"]),
        trained(request["sampler"] if corrected else given["old"]),
        torch.from_numpy(np.repeat(np.asarray(advantages, np.float32), counts)),
        torch.from_numpy(weights),
        objective_settings(settings),
        reference=trained(given["reference"]) if settings["beta"] else None,
        start=trained(given["old"]) if corrected else None,
        shares=torch.full((sum(counts),), 1.0 / sum(counts)),
        sequence_log_ratio=torch.cat([each.mean().expand(len(each)) for each in ratios]),
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
    """AssertionError where EARL's numbers and TRL's differ by more than TOLERANCE.

    What counts as clipped is another where the ratio is a trajectory's, and with dual clip.
    """
    alike = {"level", "delta"}.isdisjoint(theirs["settings"])
    for key in ("advantages", "loss", "gradient"):
        np.testing.assert_allclose(mine[key], theirs[key], rtol=TOLERANCE, atol=TOLERANCE, err_msg=key)
    for key, value in theirs["metrics"].items():
        if key == "clip_fraction" and not alike:
            continue
        np.testing.assert_allclose(mine["metrics"][key], value, rtol=TOLERANCE, atol=TOLERANCE, err_msg=key)
