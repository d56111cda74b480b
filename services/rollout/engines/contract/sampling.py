"""Sampling that depends on (seed, position) and nothing else.

The uniform for the token at position p of a context is a hash of (seed, p), so a request draws the
same numbers whatever it is batched with and wherever it continues; the inverse of the cumulative
distribution, block by block, turns them into ids.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

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
    logits: torch.Tensor, temperatures: np.ndarray, seeds: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One token for each row: (ids [N] int64, logprobs [N] float32).

    logits [N, V]; temperatures [N] float32, 0 for greedy; seeds [N] uint64; positions [N] int64 of
    the tokens to be sampled. Log-probs are of softmax(logits / temperature), of temperature 1 for
    greedy rows. Raises FloatingPointError if a row has no finite distribution.
    """
    device = logits.device
    greedy = temperatures == 0
    heat = np.where(greedy, np.float32(1), temperatures).astype(np.float32)
    divisor = torch.from_numpy(heat).to(device)[:, None]
    weights = logits.float() if logits.dtype != torch.float32 else logits.clone()
    if (heat != 1).any():
        weights.div_(divisor)
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
        draws = torch.from_numpy(uniforms(seeds, positions)).to(device)
        drawn = _invert(blocks, cumulative, draws * total)
        ids = torch.where(torch.from_numpy(greedy).to(device), ids, drawn) if greedy.any() else drawn
    chosen = (logits.gather(-1, ids[:, None]).float() / divisor).squeeze(-1) - top
    logprobs = (chosen.double() - total.log()).float().cpu().numpy()
    return ids.cpu().numpy(), logprobs


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
