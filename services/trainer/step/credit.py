"""The advantage of every trained token of a batch, and what the critic is to learn: columns of this rank.

The scheduler made a scalar of each trajectory from the groups' rewards; the rank spreads its own over their
tokens (distributed advantages: EARL, arXiv 2510.05943). With a critic the sums that advantages are scaled by
are the only thing that ranks exchange.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from earl.config.trainer import TrainerConfig
from earl.fragments.credit import CreditedTokens, CreditFragment, credit_of
from earl.parallelism import REFERENCE
from services.trainer.ranks.rank_mesh import RankMesh
from services.trainer.step.batch import Columns

# Added to the deviation that advantages are divided by, as TRL does.
DEVIATION_MARGIN = 1e-8


@dataclass(frozen=True, slots=True)
class CreditColumns:
    """Advantages of this rank's sequences and what the critic is to learn, float32[total tokens] each, 0
    where the mask is 0. returns: None without a critic."""

    advantages: np.ndarray
    returns: np.ndarray | None = None


def credit_columns(
    columns: Columns, fragment: CreditFragment, trainer: TrainerConfig, values: np.ndarray | None
) -> CreditColumns:
    """The credit of each sequence by the fragment. values: float32[total tokens], of a critic; None without.

    Raises FragmentError.
    """
    total = int(columns.offsets[-1])
    advantages = np.zeros(total, np.float32)
    returns = None if values is None else np.zeros(total, np.float32)
    reference = columns.roles.get(REFERENCE) if trainer.kl_estimator == "k1" else None
    for index in range(len(columns.items)):
        span = slice(int(columns.offsets[index]), int(columns.offsets[index + 1]))
        mask = columns.loss_mask[span].astype(bool)
        if not mask.any():
            continue
        starts = np.diff(mask.astype(np.int8), prepend=0) > 0
        tokens = CreditedTokens(
            rewards=_rewards(columns, index, mask, trainer.kl_coefficient, reference),
            turns=np.cumsum(starts)[mask] - 1,
            values=None if values is None else values[span][mask],
            turn_discount=trainer.turn_discount,
            token_discount=trainer.token_discount,
            trace_decay=trainer.gae_lambda,
        )
        made = credit_of(trainer.credit, fragment, tokens)
        advantages[span][mask] = made.advantages
        if returns is not None:
            returns[span][mask] = made.returns
    return CreditColumns(advantages, returns)


def _rewards(
    columns: Columns, index: int, mask: np.ndarray, kl_coefficient: float, reference: np.ndarray | None
) -> np.ndarray:
    """float32[n]: a trajectory's scalar at its last trained token, less the weighted KL to the reference at
    each. reference: float32[total tokens], its log-probs; None where the reward has no KL.

    With rewards of turns the scalar lies where it was earned, and what it has beside them at the last token.
    """
    item = columns.items[index]
    span = slice(int(columns.offsets[index]), int(columns.offsets[index + 1]))
    rewards = np.zeros(int(mask.sum()), np.float32)
    if columns.rewards is not None:
        rewards += columns.rewards[span][mask]
    rewards[-1] += item.advantage - rewards.sum(dtype=np.float64)
    coefficient = kl_coefficient + item.protected_kl
    if coefficient > 0.0 and reference is not None:
        # Schulman's k1: log policy - log reference, on tokens that the policy sampled.
        rewards -= coefficient * (columns.logprobs[span] - reference[span])[mask]
    return rewards


def whitened(advantages: np.ndarray, mask: np.ndarray, mesh: RankMesh) -> np.ndarray:
    """float32[total tokens]: less the mean of all ranks' trained tokens, over their deviation. A collective.

    mask: uint8[total tokens], of what is trained.
    """
    trained = advantages[mask == 1].astype(np.float64)
    counted = trained if mesh.counts else trained[:0]
    sums = torch.tensor([len(counted), counted.sum(), np.square(counted).sum()], dtype=torch.float64)
    count, total, squares = mesh.group.sum(sums).tolist()
    if count < 2:
        return advantages
    mean = total / count
    variance = max(0.0, squares - count * mean * mean) / (count - 1)
    scaled = (advantages - mean) / (np.sqrt(variance) + DEVIATION_MARGIN)
    return np.where(mask == 1, scaled, 0.0).astype(np.float32)


def explained_variance(returns: np.ndarray, values: np.ndarray, mask: np.ndarray, mesh: RankMesh) -> float:
    """1 - Var(returns - values) / Var(returns) over all ranks' trained tokens: 1 where the critic is right, 0
    where it does no better than a constant; 0 where all returns are equal. A collective."""
    chosen = mask == 1 if mesh.counts else np.zeros(len(mask), bool)
    moments = [float(chosen.sum())]
    for column in (returns[chosen].astype(np.float64), (returns - values)[chosen].astype(np.float64)):
        moments += [column.sum(), np.square(column).sum()]
    count, *sums = mesh.group.sum(torch.tensor(moments, dtype=torch.float64)).tolist()
    if not count:
        return 0.0
    spread, error = (squares / count - (total / count) ** 2 for total, squares in (sums[:2], sums[2:]))
    return 1.0 - error / spread if spread > 1e-12 else 0.0
