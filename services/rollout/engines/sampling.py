"""Sampling that depends on (seed, position) and nothing else.

The uniform for the token at position p of a context is a hash of (seed, p), so a request draws the
same numbers whatever it is batched with and wherever it continues; the inverse of the cumulative
distribution turns them into ids.
"""

from __future__ import annotations

import numpy as np
import torch

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
    logits = logits.float()
    if (heat != 1).any():
        logits = logits / torch.from_numpy(heat).to(device)[:, None]
    logprobs = torch.log_softmax(logits, -1)
    if greedy.all():
        ids = logprobs.argmax(-1)
    else:
        cumulative = logprobs.double().exp_().cumsum_(-1)
        draws = torch.from_numpy(uniforms(seeds, positions)).to(device)
        # The first id whose cumulative probability exceeds the draw has positive probability.
        ids = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True)
        ids = ids.squeeze(-1).clamp_(max=logits.shape[-1] - 1)
        if greedy.any():
            ids = torch.where(torch.from_numpy(greedy).to(device), logprobs.argmax(-1), ids)
    chosen = logprobs.gather(-1, ids[:, None]).squeeze(-1).cpu().numpy()
    if not np.isfinite(chosen).all():
        raise FloatingPointError(
            f"{int((~np.isfinite(chosen)).sum())} of {len(chosen)} rows of logits are not finite"
        )
    return ids.cpu().numpy(), chosen
