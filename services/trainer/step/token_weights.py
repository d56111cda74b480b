"""From losses of tokens to one number: how much each token of a mini-batch counts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
