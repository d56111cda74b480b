"""Objectives over the trained tokens of one micro-batch: pure functions of tensors.

Every tensor is [N], one entry per trained token, float32. `weights` say how much a token's loss counts:
the loss, and its gradient, of a mini-batch in one piece are the sums of its micro-batches'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from earl.fragments.losses import LossFragment, TrainedTokens, clip, losses_of
from earl.fragments.weights import EngineRatios, WeightFragment, weights_of
from services.trainer.model.teacher import NO_TEACHER, TeacherTerm

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
    "value_loss",
    "kl_teacher",
)


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    """Policy gradient by a ratio; with `clip` and group-relative advantages, GRPO.

    loss: the fragment of the name loss_name; dual_clip: as TrainedTokens has it. weight: the fragment of the
    name weight_name, by which each token's loss is multiplied: the ratio is then taken to the trainer's own
    log-probs at the start of the batch; without one it is taken to the engine's. kl_estimator: of the KL in
    the loss, one of KL_ESTIMATORS. value_coefficient, value_clip: see `critic_loss`. teacher: its part.
    """

    clip_low: float
    clip_high: float
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0
    importance_cap: float = 2.0
    importance_floor: float = 0.5
    loss_name: str = "clip"
    loss: LossFragment = clip
    dual_clip: float = 3.0
    weight_name: str = "behaviour"
    weight: WeightFragment | None = None
    kl_estimator: str = "k3"
    value_coefficient: float = 0.0
    value_clip: float = 0.2
    teacher: TeacherTerm = NO_TEACHER


@dataclass(frozen=True, slots=True)
class CriticTokens:
    """values: the critic's, with a graph. old: at the start of the batch. returns: what it is to learn."""

    values: torch.Tensor
    old: torch.Tensor
    returns: torch.Tensor


@dataclass(frozen=True, slots=True)
class Objective:
    """loss: scalar with a graph. stats: float32[len(STAT_NAMES)], detached.

    mismatch_max: the largest |log-prob difference| between trainer and engine, a scalar, detached.
    """

    loss: torch.Tensor
    stats: torch.Tensor
    mismatch_max: torch.Tensor


def k2(logprobs: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Schulman's k2 estimate of KL(policy || other) per token, (log ratio)^2 / 2: its gradient, on tokens
    that the policy sampled, is the KL's."""
    return 0.5 * (logprobs - other).square()


def k3(logprobs: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimate of KL(policy || other) per token sampled from the policy: never negative."""
    difference = other - logprobs
    return torch.expm1(difference) - difference


# Estimates of the KL to the reference policy in the loss; "k1" is in the reward (step/credit.py).
KL_ESTIMATORS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k2": k2, "k3": k3}


def critic_loss(critic: CriticTokens, bound: float) -> torch.Tensor:
    """float32[N]: half the squared error of each value, the larger of the value's and of that which stays
    within `bound` of the old one. PPO's, as in "PPO2" and TRL: a value moves little in a batch."""
    near = critic.old + (critic.values - critic.old).clamp(-bound, bound)
    errors = torch.stack((critic.values, near)) - critic.returns
    return 0.5 * errors.square().amax(0)


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
    trajectory_ratio: torch.Tensor | None = None,
    critic: CriticTokens | None = None,
    teacher: torch.Tensor | None = None,
) -> Objective:
    """Policy gradient against the policy that sampled. Raises FragmentError.

    behaviour: log-probs that the engine recorded while sampling. reference: log-probs of the policy that
    training started from; needed when kl_coefficient > 0 or protected_kl is given. protected_kl: each token's
    weight of the KL to that policy, beside kl_coefficient; where both are 0 the reference may be anything.
    start: the trainer's log-probs at the start of the batch; None: the current ones are those (first
    optimizer step of the batch). shares: what a token counts in all metrics but the loss; None: weights.
    sequence_log_ratio: as TrainedTokens has it. trajectory_ratio: as EngineRatios has it. critic: its values,
    whose error joins the loss. teacher: the teacher's log-probs; needed when it counts.
    """
    shares = weights if shares is None else shares
    start = logprobs.detach() if start is None else start
    mismatch = start - behaviour
    importance = mismatch.exp()
    tokens = TrainedTokens(
        logprobs,
        behaviour if settings.weight is None else start,
        settings.teacher.advantages(advantages, logprobs, teacher),
        settings.clip_low,
        settings.clip_high,
        settings.dual_clip,
        sequence_log_ratio,
    )
    made = losses_of(settings.loss_name, settings.loss, tokens)
    per_token = made.loss
    # Tokens that the weights do not count as they are.
    beyond = importance > settings.importance_cap
    if settings.weight is not None:
        ratios = EngineRatios(
            importance, settings.importance_cap, settings.importance_floor, trajectory_ratio
        )
        counted = weights_of(settings.weight_name, settings.weight, ratios)
        per_token = per_token * counted
        if trajectory_ratio is not None:
            beyond = trajectory_ratio > settings.importance_cap
        beyond |= counted == 0.0
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
        kl_reference = KL_ESTIMATORS.get(settings.kl_estimator, k3)(logprobs, reference)
        if settings.kl_estimator in KL_ESTIMATORS:
            per_token = per_token + coefficient * kl_reference
    kl_teacher = None if teacher is None else k3(logprobs, teacher)
    per_token = per_token + settings.teacher.loss(kl_teacher)
    value_loss = None
    if critic is not None:
        value_loss = critic_loss(critic, settings.value_clip)
        per_token = per_token + settings.value_coefficient * value_loss
    loss = (per_token * weights).sum()
    with torch.no_grad():
        nothing = torch.zeros_like(behaviour)
        means = (
            entropy,
            # Tokens were sampled by the behaviour policy: k3 of it against the new policy.
            k3(behaviour, logprobs),
            made.clipped.float(),
            mismatch.abs(),
            k3(behaviour, start),
            beyond.float(),
            nothing if kl_reference is None else kl_reference,
            nothing if value_loss is None else value_loss,
            nothing if kl_teacher is None else kl_teacher,
        )
        stats = torch.stack([loss.detach(), *((mean.detach() * shares).sum() for mean in means)])
        return Objective(loss, stats, torch.where(shares > 0, mismatch.abs(), 0.0).max())


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
