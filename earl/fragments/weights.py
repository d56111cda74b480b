"""Weight fragments: how much the loss of each trained token counts, given how far the trainer's log-probs
are from the engine's for the same token. Pure functions of tensors.

    def mine(ratios: EngineRatios) -> torch.Tensor:
        return ratios.token.clamp(max=1.0)

A fragment gets the trained tokens of one micro-batch that this rank computes, N of them, at least one, and
returns float32[N]. One that looks at whole trajectories says so by `@of_trajectories`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from earl.errors import FragmentError


@dataclass(frozen=True, slots=True)
class EngineRatios:
    """Ratios trainer / engine of probabilities at the start of the batch, without a graph.

    token: float32[N], of each token. trajectory: float32[N], the product of the ratios of all trained tokens
    of its trajectory; None unless the fragment is marked by `of_trajectories`. cap, floor: the bounds of the
    run file, importance_cap and importance_floor.
    """

    token: torch.Tensor
    cap: float
    floor: float
    trajectory: torch.Tensor | None = None


WeightFragment = Callable[[EngineRatios], torch.Tensor]
Fragment = TypeVar("Fragment", bound=WeightFragment)


def of_trajectories(fragment: Fragment) -> Fragment:
    """Marks a fragment that needs `trajectory`: a sum over ranks that share one."""
    fragment.needs_trajectories = True  # type: ignore[attr-defined]
    return fragment


def needs_trajectories(fragment: WeightFragment) -> bool:
    """Returns whether the fragment is marked by `of_trajectories`."""
    return bool(getattr(fragment, "needs_trajectories", False))


def truncated(ratios: EngineRatios) -> torch.Tensor:
    """min(w, cap), w of the token: truncated importance sampling. Yao et al., "Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training"."""
    return ratios.token.clamp(max=ratios.cap)


def masked(ratios: EngineRatios) -> torch.Tensor:
    """w of the token where floor <= w <= cap, else 0. IcePop."""
    return _within(ratios.token, ratios)


def decoupled(ratios: EngineRatios) -> torch.Tensor:
    """w of the token: decoupled PPO. AReaL, arXiv 2505.24298."""
    return ratios.token


@of_trajectories
def sequence_truncated(ratios: EngineRatios) -> torch.Tensor:
    """min(w, cap), w of the trajectory: TRL's sequence_truncate."""
    return _trajectory(ratios).clamp(max=ratios.cap)


@of_trajectories
def sequence_masked(ratios: EngineRatios) -> torch.Tensor:
    """w of the trajectory where floor <= w <= cap, else 0: TRL's sequence_mask, with a lower bound too."""
    return _within(_trajectory(ratios), ratios)


WEIGHTS: Mapping[str, WeightFragment] = {
    "truncated": truncated,
    "masked": masked,
    "decoupled": decoupled,
    "sequence-truncated": sequence_truncated,
    "sequence-masked": sequence_masked,
}


def weights_of(name: str, fragment: WeightFragment, ratios: EngineRatios) -> torch.Tensor:
    """The fragment's weights, checked. Raises FragmentError that names the fragment and what is wrong."""
    shape = ratios.token.shape
    try:
        made = fragment(ratios)
    except Exception as error:
        raise FragmentError(
            f"trainer.importance = {name!r} failed: {type(error).__name__}: {error}", "correct the function"
        ) from error
    if not isinstance(made, torch.Tensor) or made.shape != shape or made.dtype != torch.float32:
        got = f"{made.dtype}{list(made.shape)}" if isinstance(made, torch.Tensor) else repr(made)
        raise FragmentError(
            f"trainer.importance = {name!r} returned {got}", f"return {torch.float32}{list(shape)}"
        )
    return made


def _trajectory(ratios: EngineRatios) -> torch.Tensor:
    if ratios.trajectory is None:
        raise ValueError("trajectory is missing")
    return ratios.trajectory


def _within(weights: torch.Tensor, ratios: EngineRatios) -> torch.Tensor:
    return torch.where((weights >= ratios.floor) & (weights <= ratios.cap), weights, 0.0)
