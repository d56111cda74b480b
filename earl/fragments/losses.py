"""Loss fragments: the loss of each trained token, from log-probs and advantages. Pure functions of tensors.

    def mine(tokens: TrainedTokens) -> TokenLosses:
        ratio = torch.exp(tokens.logprobs - tokens.old)
        return TokenLosses(-ratio * tokens.advantages, torch.zeros_like(ratio, dtype=torch.bool))

A fragment gets the trained tokens of one micro-batch that this rank computes, N of them, at least one. It
returns a loss and a mark for each, which must follow from that token's columns alone: N depends on how a
batch is divided into micro-batches and ranks. One that looks at whole trajectories says so by
`@of_sequences`, and has `sequence_log_ratio` then. Entropy bonus, KL to the reference, importance weights
and the mean over tokens are not its business: the step adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from earl.errors import FragmentError


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """Trained tokens: float32[N] each, all on one device.

    logprobs: under the policy as it is now, with a graph. old: under the policy that the ratio is taken to,
    without one. sequence_log_ratio: of each token, the mean of logprobs - old over all trained tokens of its
    trajectory, without a graph; None unless the fragment is marked by `of_sequences`. clip_low, clip_high:
    a ratio is kept within [1 - clip_low, 1 + clip_high]. dual_clip: above 1.
    """

    logprobs: torch.Tensor
    old: torch.Tensor
    advantages: torch.Tensor
    clip_low: float
    clip_high: float
    dual_clip: float = 3.0
    sequence_log_ratio: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """loss: float32[N], with a graph; each token's, of its own columns alone. clipped: bool[N], tokens that
    clip_fraction counts."""

    loss: torch.Tensor
    clipped: torch.Tensor


LossFragment = Callable[[TrainedTokens], TokenLosses]
Fragment = TypeVar("Fragment", bound=LossFragment)


def of_sequences(fragment: Fragment) -> Fragment:
    """Marks a fragment that needs `sequence_log_ratio`: a sum over ranks that share a trajectory."""
    fragment.needs_sequences = True  # type: ignore[attr-defined]
    return fragment


def needs_sequences(fragment: LossFragment) -> bool:
    """Returns whether the fragment is marked by `of_sequences`."""
    return bool(getattr(fragment, "needs_sequences", False))


def clip(tokens: TrainedTokens) -> TokenLosses:
    """-min(r A, clip(r) A) with r = exp(logprobs - old): PPO, arXiv 1707.06347, Eq. 7; separate bounds as in
    DAPO, arXiv 2503.14476."""
    return _clipped(torch.exp(tokens.logprobs - tokens.old), tokens)


def dual_clip(tokens: TrainedTokens) -> TokenLosses:
    """PPO's clip, and where A < 0 a token's loss is at most -dual_clip A: a policy that has moved far towards
    a bad token does not dominate the step. arXiv 1912.09729, Eq. 5."""
    plain = clip(tokens)
    bound = -tokens.dual_clip * tokens.advantages
    beyond = (tokens.advantages < 0) & (plain.loss > bound)
    return TokenLosses(torch.where(beyond, bound, plain.loss), plain.clipped | beyond)


def cispo(tokens: TrainedTokens) -> TokenLosses:
    """-min(r, 1 + clip_high) A logprobs, the ratio without a graph: no token loses its gradient. CISPO,
    MiniMax-M1, arXiv 2506.13585, Eq. 4, with an upper bound alone."""
    ratio = torch.exp(tokens.logprobs - tokens.old).detach()
    bounded = ratio.clamp(max=1.0 + tokens.clip_high)
    loss = -bounded * tokens.advantages * tokens.logprobs
    return TokenLosses(loss, (ratio > bounded) & (tokens.advantages > 0))


@of_sequences
def gspo(tokens: TrainedTokens) -> TokenLosses:
    """PPO's clip with the ratio of the trajectory, s = exp(mean of logprobs - old over its trained tokens).
    GSPO, arXiv 2507.18071.

    Each token has the value of s and the gradient of s times its own log-prob's (the paper's GSPO-token):
    with trainer.loss_mean = "sequence" the sum is GSPO's gradient.
    """
    if tokens.sequence_log_ratio is None:
        raise ValueError("sequence_log_ratio is missing")
    # 1, with the gradient of the token's log-prob.
    unit = torch.exp(tokens.logprobs - tokens.logprobs.detach())
    return _clipped(torch.exp(tokens.sequence_log_ratio) * unit, tokens)


LOSSES: Mapping[str, LossFragment] = {"clip": clip, "dual-clip": dual_clip, "cispo": cispo, "gspo": gspo}


def losses_of(name: str, fragment: LossFragment, tokens: TrainedTokens) -> TokenLosses:
    """The fragment's losses, checked. Raises FragmentError that names the fragment and what is wrong."""
    shape = tokens.logprobs.shape
    try:
        made = fragment(tokens)
        loss, clipped = made.loss, made.clipped
    except Exception as error:
        raise FragmentError(
            f"trainer.loss = {name!r} failed: {type(error).__name__}: {error}", "correct the function"
        ) from error
    for column, tensor, dtype in (("loss", loss, torch.float32), ("clipped", clipped, torch.bool)):
        if not isinstance(tensor, torch.Tensor) or tensor.shape != shape or tensor.dtype != dtype:
            got = f"{tensor.dtype}{list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else repr(tensor)
            raise FragmentError(
                f"trainer.loss = {name!r} returned {got} as {column}", f"return {dtype}{list(shape)}"
            )
    if not loss.requires_grad and tokens.logprobs.requires_grad:
        raise FragmentError(
            f"trainer.loss = {name!r} returned a loss that does not depend on logprobs",
            "compute it from tokens.logprobs without detach",
        )
    return made


def _clipped(ratio: torch.Tensor, tokens: TrainedTokens) -> TokenLosses:
    clamped = ratio.clamp(1.0 - tokens.clip_low, 1.0 + tokens.clip_high)
    gain, bounded = ratio * tokens.advantages, clamped * tokens.advantages
    return TokenLosses(-torch.minimum(gain, bounded), bounded < gain)
