"""From one advantage per sequence to one per trained token: the scheduler made the scalars from the
groups' rewards (distributed advantages: no tensor is gathered for them), the rank spreads its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def per_token(values: Sequence[float], trained_tokens: Sequence[int]) -> np.ndarray:
    """float32[sum(trained_tokens)]: each sequence's value, such as its advantage, once per trained token."""
    return np.repeat(np.asarray(values, np.float32), np.asarray(trained_tokens, np.int64))


def turn_discounts(loss_mask: np.ndarray, starts: np.ndarray, discount: float) -> np.ndarray:
    """float32[trained tokens]: discount to the power of the turns that its sequence trains after the token's.

    loss_mask: uint8[T] of sequences end to end, whose first tokens lie at `starts`, int64[sequences], and are
    not trained. A turn is a run of trained tokens. discount: of each turn, above 0 and at most 1.
    """
    mask = loss_mask.astype(np.int64)
    turns = np.cumsum(np.diff(mask, prepend=0) > 0)
    ends = np.append(starts[1:], len(mask)) - 1
    last = np.repeat(turns[ends], np.add.reduceat(mask, starts))
    return np.power(np.float32(discount), (last - turns[mask > 0]).astype(np.float32))


def token_weights(
    trained_tokens: Sequence[int],
    mean: str,
    total_tokens: int,
    total_sequences: int,
    sequence_tokens: int = 0,
) -> np.ndarray:
    """float32[sum(trained_tokens)]: what each token's loss counts.

    trained_tokens: per sequence at hand. total_tokens, total_sequences: of the optimizer step's
    mini-batch over all ranks; only sequences with a trained token count.
    mean: "token" (mean over tokens; TRL's bnpo and dapo), "sequence" (mean over sequences of their token
    means; grpo) or "constant" (mean over sequences of their token sums divided by sequence_tokens, so that
    a token counts the same however long its sequence is; dr_grpo). The first two add up to 1 over the
    whole mini-batch.
    """
    counts = np.asarray(trained_tokens, np.int64)
    if mean == "token":
        return np.full(int(counts.sum()), 1.0 / max(1, total_tokens), np.float32)
    if mean == "sequence":
        each = 1.0 / (np.maximum(counts, 1) * float(max(1, total_sequences)))
        return np.repeat(each.astype(np.float32), counts)
    if mean == "constant":
        each = 1.0 / (float(max(1, total_sequences)) * sequence_tokens)
        return np.full(int(counts.sum()), each, np.float32)
    raise ValueError(f"loss_mean is {mean!r}, not 'token', 'sequence' or 'constant'")
