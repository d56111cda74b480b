"""The roofline's shape of time and memory, fitted to a parallelism's rows: what is beyond them. Pure.

A decoding step of B sequences at context L reads the weights once and each sequence's KV, and computes for
each token: seconds per token = w / B + c + k L + s / (B L), all >= 0 (Williams, Waterman, Patterson, CACM
2009, as sums instead of maxima; the last term is what a call costs whatever it does). Memory is the weights,
what a sequence takes, what a token of the longest takes, and KV: m + b C + l L + k L C.

Points that all have one concurrency, or one length, tell nothing of what another would change: of time, terms
with it are left out; of memory, what grows is taken for KV, which grows with both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

Point = tuple[float, float]
_Terms = Callable[[Any, Any], tuple[Any, ...]]


class Roofline:
    """A sum of terms with coefficients >= 0 that is nearest to the values, by relative error."""

    def __init__(self, points: Sequence[Point], values: Sequence[float], terms: _Terms) -> None:
        self._terms = terms
        targets = np.asarray(values, float)
        design = np.stack(terms(*np.asarray(points, float).T), axis=1) / targets[:, None]
        self._coefficients = non_negative(design, np.ones(len(targets))).tolist()

    @classmethod
    def of_time(cls, points: Sequence[Point], values: Sequence[float]) -> Roofline:
        """values: seconds of a device per token, at (context in tokens, concurrency)."""
        by_length, by_load = _varies(points)

        def terms(length: Any, sequences: Any) -> tuple[Any, ...]:
            return (
                length / length,
                *([1 / sequences] if by_load else []),
                *([length] if by_length else []),
                *([1 / (length * sequences)] if by_length and by_load else []),
            )

        return cls(points, values, terms)

    @classmethod
    def of_memory(cls, points: Sequence[Point], values: Sequence[float]) -> Roofline:
        """values: fractions of a device's memory, at (context in tokens, concurrency)."""
        both = all(_varies(points))

        def terms(length: Any, sequences: Any) -> tuple[Any, ...]:
            return (length / length, length * sequences, *([length, sequences] if both else []))

        return cls(points, values, terms)

    def value_at(self, context_tokens: float, concurrency: float) -> float:
        """The sum there, > 0."""
        terms = self._terms(context_tokens, concurrency)
        return max(sum(c * term for c, term in zip(self._coefficients, terms, strict=True)), 1e-300)


def _varies(points: Sequence[Point]) -> tuple[bool, bool]:
    """Returns whether lengths vary, and whether concurrencies vary."""
    return len({length for length, _ in points}) > 1, len({sequences for _, sequences in points}) > 1


def non_negative(design: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Least squares with coefficients >= 0: the best of all choices of terms, of equals the one with fewest.

    Some four terms: sixteen choices are quicker than an active set is to explain.
    """
    columns = design.shape[1]
    best, best_error = np.zeros(columns), float("inf")
    for count in range(1, columns + 1):
        for chosen in map(list, combinations(range(columns), count)):
            scale = np.linalg.norm(design[:, chosen], axis=0)
            solution, *_ = np.linalg.lstsq(design[:, chosen] / scale, targets, rcond=None)
            solution = solution / scale
            if (solution < 0).any():
                continue
            error = float(np.linalg.norm(design[:, chosen] @ solution - targets))
            if error < best_error - 1e-9:
                best, best_error = np.zeros(columns), error
                best[chosen] = solution
    return best
