"""Objectives over the trained tokens of one micro-batch: pure functions of tensors.

Every tensor is [N], one entry per trained token, float32. `weights` say how much a token's loss counts:
the loss, and its gradient, of a mini-batch in one piece are the sums of its micro-batches'.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from earl.fragments.losses import LossFragment, TrainedTokens, clip, losses_of

# Metrics of `Objective.stats`, in this order: weighted sums, hence means once all parts are added.
STAT_NAMES: tuple[str, ...] = (
    "loss",
    "entropy",
    "kl_behaviour",
    "clip_fraction",
    "logprob_mismatch",
    "logprob_mismatch_kl",
    "truncated_fraction",
    "kl_reference",
)


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    """Policy gradient by a ratio; with `clip` and group-relative advantages, GRPO.

    importance: "behaviour": the ratio is taken to the engine's log-probs. With the others it is taken to the
    trainer's own at the start of the batch, and each token's loss is multiplied by w = trainer / engine:
    "decoupled": by w (decoupled PPO, AReaL, arXiv 2505.24298); "truncated": by min(w, importance_cap)
    (truncated importance sampling, Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL
    Training"); "masked": by w where it is within [importance_floor, importance_cap], else by 0 (IcePop).
    loss: the fragment of the name loss_name. dual_clip: as TrainedTokens has it.
    """

    clip_low: float
    clip_high: float
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0
    importance: str = "behaviour"
    importance_cap: float = 2.0
    importance_floor: float = 0.5
    loss_name: str = "clip"
    loss: LossFragment = clip
    dual_clip: float = 3.0


@dataclass(frozen=True, slots=True)
class Objective:
    """loss: scalar with a graph. stats: float32[len(STAT_NAMES)], detached.

    mismatch_max: the largest |log-prob difference| between trainer and engine, a scalar, detached.
    """

    loss: torch.Tensor
    stats: torch.Tensor
    mismatch_max: torch.Tensor


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
    start: torch.Tensor | None = None,
    shares: torch.Tensor | None = None,
    protected_kl: torch.Tensor | None = None,
    sequence_log_ratio: torch.Tensor | None = None,
) -> Objective:
    """Policy gradient against the policy that sampled. Raises FragmentError.

    behaviour: log-probs that the engine recorded while sampling. reference: log-probs of the policy that
    training started from; needed when kl_coefficient > 0 or protected_kl is given. protected_kl: each token's
    weight of the KL to that policy, beside kl_coefficient; where both are 0 the reference may be anything.
    start: the trainer's log-probs at the start of the batch; None: the current ones are those (first
    optimizer step of the batch). shares: what a token counts in all metrics but the loss; None: weights.
    sequence_log_ratio: as TrainedTokens has it.
    """
    shares = weights if shares is None else shares
    start = logprobs.detach() if start is None else start
    mismatch = start - behaviour
    importance = mismatch.exp()
    corrected = settings.importance != "behaviour"
    tokens = TrainedTokens(
        logprobs,
        start if corrected else behaviour,
        advantages,
        settings.clip_low,
        settings.clip_high,
        settings.dual_clip,
        sequence_log_ratio,
    )
    made = losses_of(settings.loss_name, settings.loss, tokens)
    per_token = made.loss
    if corrected:
        per_token = per_token * corrections(importance, settings)
    if settings.entropy_coefficient > 0.0:
        per_token = per_token - settings.entropy_coefficient * entropy
    kl_reference = None
    if settings.kl_coefficient > 0.0 or protected_kl is not None:
        if reference is None:
            raise ValueError("kl_coefficient > 0 and protected_kl need the reference policy's log-probs")
        coefficient = settings.kl_coefficient
        if protected_kl is not None:
            coefficient = protected_kl + settings.kl_coefficient
            # The estimate of two equal log-probs, and its gradient, are exactly 0.
            reference = torch.where(coefficient > 0.0, reference, logprobs.detach())
        kl_reference = k3(logprobs, reference)
        per_token = per_token + coefficient * kl_reference
    loss = (per_token * weights).sum()
    with torch.no_grad():
        means = (
            entropy,
            # Tokens were sampled by the behaviour policy: k3 of it against the new policy.
            k3(behaviour, logprobs),
            made.clipped.float(),
            mismatch.abs(),
            k3(behaviour, start),
            beyond(importance, settings).float(),
            torch.zeros_like(behaviour) if kl_reference is None else kl_reference,
        )
        stats = torch.stack([loss.detach(), *((mean.detach() * shares).sum() for mean in means)])
        return Objective(loss, stats, torch.where(shares > 0, mismatch.abs(), 0.0).max())


def corrections(importance: torch.Tensor, settings: PolicyGradient) -> torch.Tensor:
    """float32[N]: the weight of each token's loss, of its ratio trainer / engine."""
    if settings.importance == "decoupled":
        return importance
    if settings.importance == "truncated":
        return importance.clamp(max=settings.importance_cap)
    within = (importance >= settings.importance_floor) & (importance <= settings.importance_cap)
    return torch.where(within, importance, 0.0)


def beyond(importance: torch.Tensor, settings: PolicyGradient) -> torch.Tensor:
    """bool[N]: tokens whose ratio trainer / engine is outside of the bounds, one of them unless they are
    masked."""
    above = importance > settings.importance_cap
    return above | (importance < settings.importance_floor) if settings.importance == "masked" else above


def imitation(
    logprobs: torch.Tensor, entropy: torch.Tensor, weights: torch.Tensor, shares: torch.Tensor | None = None
) -> Objective:
    """Cross-entropy on the trained tokens. shares: as in policy_gradient."""
    loss = -(logprobs * weights).sum()
    with torch.no_grad():
        stats = loss.new_zeros(len(STAT_NAMES))
        stats[0] = loss
        stats[1] = (entropy * (weights if shares is None else shares)).sum()
        return Objective(loss, stats, loss.new_zeros(()))
