"""Filters of logits (earl.config.sampling_filters), on many rows at once.

    logits ─► repetition penalty ─► / temperature ─► scores ─► top-k ─► top-p ─► min-p ─► -inf where dropped

Each of the last three keeps the scores from some lowest one on, so that equal scores are kept or dropped
together: which tokens are kept depends on their scores alone, not on the order in which a device sorts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

# Scores that are sorted at once: it takes about 40 bytes for each.
SORTED_ELEMENTS = 1 << 21


def penalised(logits: torch.Tensor, penalties: torch.Tensor) -> torch.Tensor:
    """Logits of tokens that the context has, float32, each with the penalty at its place; 1 changes none."""
    return torch.where(logits < 0, logits * penalties, logits / penalties)


def penalise(logits: torch.Tensor, penalties: np.ndarray, contexts: Sequence[np.ndarray]) -> None:
    """Applies repetition penalties in place.

    logits [N, V] float32; penalties [N] float32, 1 for none; contexts: of each row the token ids that it
    sees, int64, any number of them; read only where there is a penalty.
    """
    rows = np.flatnonzero(penalties != 1)
    penalised_contexts = [contexts[row] for row in rows.tolist()]
    counts = [len(context) for context in penalised_contexts]
    ids = torch.from_numpy(np.concatenate(penalised_contexts)).to(logits.device)
    places = torch.from_numpy(np.repeat(rows, counts)).to(logits.device)
    by_place = torch.from_numpy(np.repeat(penalties[rows], counts)).to(logits.device)
    # An id that a context has twice is written twice, with the same value.
    logits[places, ids] = penalised(logits[places, ids], by_place)


def drop_improbable(scores: torch.Tensor, top_k: np.ndarray, top_p: np.ndarray, min_p: np.ndarray) -> None:
    """Sets the scores that the filters drop to -inf, in place; each row keeps its highest one.

    scores [N, V] float32: logits divided by the temperature. top_k [N] int64, 0 for none; top_p [N] float64,
    1 for none; min_p [N] float64, 0 for none.
    """
    rows = np.flatnonzero((top_k > 0) | (top_p < 1) | (min_p > 0))
    most = max(1, SORTED_ELEMENTS // scores.shape[1])
    for first in range(0, len(rows), most):
        chosen = rows[first : first + most]
        index = torch.from_numpy(chosen).to(scores.device)
        part = scores[index]
        least = least_kept(part, top_k[chosen], top_p[chosen], min_p[chosen])
        scores[index] = part.masked_fill_(part < least[:, None], float("-inf"))


def least_kept(scores: torch.Tensor, top_k: np.ndarray, top_p: np.ndarray, min_p: np.ndarray) -> torch.Tensor:
    """[N] float64: the lowest score that is kept of each row of scores [N, V] float32. Columns as for
    drop_improbable."""
    device, last = scores.device, scores.shape[1] - 1
    least = torch.full((len(scores),), float("-inf"), dtype=torch.float64, device=device)
    if (top_k > 0).any() or (top_p < 1).any():
        ranked = scores.sort(dim=-1, descending=True).values
        index = torch.from_numpy(np.where(top_k > 0, np.minimum(top_k - 1, last), last)).to(device)
        least = ranked.gather(1, index[:, None]).squeeze(1).double()
        if (top_p < 1).any():
            nucleus = _least_of_nucleus(ranked, least, torch.from_numpy(top_p).to(device))
            least = torch.where(torch.from_numpy(top_p < 1).to(device), nucleus, least)
    if (min_p > 0).any():
        bound = scores.amax(-1).double() + torch.from_numpy(min_p).to(device).log()
        least = torch.maximum(least, bound)
    return least


def _least_of_nucleus(ranked: torch.Tensor, least: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """[N] float64: the score at which the probabilities of ranked [N, V], from the highest one on, reach
    top_p [N] of those of all scores from least [N] on."""
    weights = ranked.double().sub_(ranked[:, :1]).exp_()
    cumulative = weights.masked_fill_(ranked < least[:, None], 0.0).cumsum_(-1)
    points = top_p[:, None] * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, points).clamp_(max=ranked.shape[1] - 1)
    return ranked.gather(1, index).squeeze(1).double()
