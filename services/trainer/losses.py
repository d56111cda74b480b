"""Objectives over the trained tokens of one micro-batch: pure functions of tensors.

Every tensor is [N], one entry per trained token, float32. `weights` say how much a token counts: over
all micro-batches of all ranks of one optimizer step they add up to 1, so that the sum of the
micro-batches' losses, and of their gradients, is that of the big batch in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Metrics of `Objective.stats`, in this order: weighted sums, hence means once all parts are added.
STAT_NAMES: tuple[str, ...] = (
    "loss",
    "entropy",
    "kl_behaviour",
    "clip_fraction",
    "logprob_mismatch",
    "kl_reference",
)


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    """Clipped ratio objective (PPO's clip; with group-relative advantages, GRPO).

    The ratio is kept within [1 - clip_low, 1 + clip_high].
    """

    clip_low: float
    clip_high: float
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0


@dataclass(frozen=True, slots=True)
class Objective:
    """loss: scalar with a graph. stats: float32[len(STAT_NAMES)], detached."""

    loss: torch.Tensor
    stats: torch.Tensor


def k3(logprobs: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimate of KL(policy || other) per token sampled from the policy: never negative."""
    difference = other - logprobs
    return torch.expm1(difference) - difference


def policy_gradient(
    logprobs: torch.Tensor,
    entropy: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    settings: PolicyGradient,
    reference: torch.Tensor | None = None,
) -> Objective:
    """Clipped policy gradient against the log-probs that the engine recorded while sampling.

    reference: log-probs of the policy that training started from; needed when kl_coefficient > 0.
    """
    difference = logprobs - behaviour
    ratio = torch.exp(difference)
    clipped = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    gain = torch.minimum(ratio * advantages, clipped * advantages)
    per_token = -gain
    if settings.entropy_coefficient > 0.0:
        per_token = per_token - settings.entropy_coefficient * entropy
    kl_reference = None
    if settings.kl_coefficient > 0.0:
        if reference is None:
            raise ValueError("kl_coefficient > 0 needs the reference policy's log-probs")
        kl_reference = k3(logprobs, reference)
        per_token = per_token + settings.kl_coefficient * kl_reference
    loss = (per_token * weights).sum()
    with torch.no_grad():
        cut = clipped * advantages < ratio * advantages
        parts = [
            loss.detach(),
            (entropy * weights).sum(),
            # Tokens were sampled by the behaviour policy: k3 of it against the new policy.
            (k3(behaviour, logprobs) * weights).sum(),
            (cut.float() * weights).sum(),
            (difference.abs() * weights).sum(),
            torch.zeros_like(loss) if kl_reference is None else (kl_reference * weights).sum(),
        ]
        return Objective(loss, torch.stack([part.detach() for part in parts]))


def imitation(logprobs: torch.Tensor, entropy: torch.Tensor, weights: torch.Tensor) -> Objective:
    """Cross-entropy on the trained tokens."""
    loss = -(logprobs * weights).sum()
    with torch.no_grad():
        zero = torch.zeros_like(loss)
        stats = torch.stack([loss.detach(), (entropy * weights).sum().detach(), zero, zero, zero, zero])
    return Objective(loss, stats)
