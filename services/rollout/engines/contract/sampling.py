"""Sampling that depends on (seed, position) and nothing else.

The uniform for the token at position p of a context is a hash of (seed, p), so a request draws the
same numbers whatever it is batched with and wherever it continues; the inverse of the cumulative
distribution, block by block, turns them into ids. Filters (filters.py) give a weight of 0 to what they
drop: the same uniform then draws from what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from services.rollout.engines.contract.filters import drop_improbable, penalise, penalised
from services.rollout.engines.contract.sampling_columns import SamplingColumns

# Ids whose weights are summed before they are searched.
BLOCK = 128
BELOW_ONE = 1.0 - 2.0**-52
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser over uint64 [N]; wraps around."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """[N] float64 in [0, 1) from seeds [N] uint64 and positions [N] int64, each pair its own draw."""
    counters = _mix(seeds + _GOLDEN) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return (_mix(counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample(
    logits: torch.Tensor,
    columns: SamplingColumns,
    positions: np.ndarray,
    contexts: Sequence[np.ndarray] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """One token for each row: (ids [N] int64, logprobs [N] float32).

    logits [N, V]; columns [N]; positions [N] int64 of the tokens to be sampled. contexts: of each row the
    token ids that it sees, int64, whose repetition its penalty is about; needed if columns.penalises.
    Log-probs are of softmax(logits / temperature), of temperature 1 for greedy rows, after the penalty; where
    tokens were dropped, over those that were kept. Raises FloatingPointError if a row has no finite
    distribution.
    """
    device = logits.device
    greedy, filtered = columns.temperature == 0, bool(columns.filtered.any())
    penalises = filtered and columns.penalises
    heat = np.where(greedy, np.float32(1), columns.temperature).astype(np.float32)
    divisor = torch.from_numpy(heat).to(device)[:, None]
    weights = logits.float() if logits.dtype != torch.float32 else logits.clone()
    if penalises:
        penalise(weights, columns.repetition_penalty, contexts)
    if (heat != 1).any():
        weights.div_(divisor)
    if filtered:
        drop_improbable(weights, columns.top_k, columns.top_p, columns.min_p)
    top, ids = weights.max(-1)
    finite = top.isfinite()
    if not finite.all():
        raise FloatingPointError(f"{int((~finite).sum())} of {len(top)} rows of logits are not finite")
    # Probabilities times a constant, and their sums over blocks: one exponential for log-prob and draw.
    weights.sub_(top[:, None]).exp_()
    if logits.shape[1] % BLOCK:
        weights = F.pad(weights, (0, -logits.shape[1] % BLOCK))
    blocks = weights.unflatten(-1, (-1, BLOCK))
    cumulative = blocks.sum(-1).double().cumsum_(-1)
    total = cumulative[:, -1]
    if not greedy.all():
        draws = torch.from_numpy(uniforms(columns.seed, positions)).to(device)
        drawn = _invert(blocks, cumulative, draws * total)
        ids = torch.where(torch.from_numpy(greedy).to(device), ids, drawn) if greedy.any() else drawn
    chosen = logits.gather(-1, ids[:, None]).float()
    if penalises:
        chosen = penalised(chosen, _penalties_of(ids, columns.repetition_penalty, contexts))
    chosen = (chosen / divisor).squeeze(-1) - top
    logprobs = (chosen.double() - total.log()).float().cpu().numpy()
    return ids.cpu().numpy(), logprobs


def sample_by_row(
    logits: torch.Tensor,
    columns: SamplingColumns,
    positions: np.ndarray,
    contexts: Sequence[np.ndarray] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """`sample`, one row at a time: its kernels see one shape only, so that the bits of a row do not depend on
    the others."""
    each = [slice(row, row + 1) for row in range(len(logits))]
    rows = [sample(logits[row], columns.rows(row), positions[row], contexts[row]) for row in each]
    return np.concatenate([ids for ids, _ in rows]), np.concatenate([logprobs for _, logprobs in rows])


def _penalties_of(ids: torch.Tensor, penalties: np.ndarray, contexts: Sequence[np.ndarray]) -> torch.Tensor:
    """[N, 1] float32: the penalty of each row's own id of ids [N]; 1 if the row does not see it."""
    repeats = [
        penalty != 1 and bool((contexts[row] == token).any())
        for row, (token, penalty) in enumerate(zip(ids.tolist(), penalties, strict=True))
    ]
    applied = np.where(repeats, penalties, np.float32(1)).astype(np.float32)
    return torch.from_numpy(applied).to(ids.device)[:, None]


def _invert(blocks: torch.Tensor, cumulative: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """The first id of each row whose cumulative weight exceeds the point: its weight is positive.

    blocks [N, K, BLOCK] float32, cumulative [N, K] and points [N] float64, below each row's total.
    """
    points = torch.minimum(points, cumulative[:, -1] * BELOW_ONE)
    block = torch.searchsorted(cumulative, points[:, None], right=True).clamp_(max=blocks.shape[1] - 1)
    before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp_(min=0)), 0.0)
    index = block[:, :, None].expand(-1, 1, BLOCK)
    inner = blocks.gather(1, index).squeeze(1).double().cumsum_(-1)
    rest = torch.minimum(points[:, None] - before, inner[:, -1:] * BELOW_ONE)
    inside = torch.searchsorted(inner, rest, right=True).clamp_(max=BLOCK - 1)
    return (block * BLOCK + inside).squeeze(1)
