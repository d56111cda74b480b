"""Assigns copies to replicas: the nearest ones share, filled like vessels to one level. Pure.

    bytes planned  ▁ ▅ ▂        level L: what each would have read from it if bytes could be split at will;
    shares         ▆ ▂ ▅        a copy goes where its middle falls, so none gets more than L plus one copy

Everything is integers and arrays: the same input gives the same plan everywhere.
"""

from __future__ import annotations

import numpy as np


def fill(loads: np.ndarray, size_bytes: int) -> np.ndarray:
    """int64[K]: shares of `size_bytes` that level replicas with `loads` (int64[K], bytes) best."""
    order = np.argsort(loads, kind="stable")
    sorted_loads = loads[order]
    # Bytes that raise the k lowest to the level of the next.
    filled = np.arange(1, len(loads)) * np.diff(sorted_loads)
    lowest = int(np.searchsorted(np.cumsum(filled), size_bytes, "left")) + 1
    total = int(sorted_loads[:lowest].sum()) + size_bytes
    level, rest = divmod(total, lowest)
    shares = np.zeros(len(loads), np.int64)
    shares[order[:lowest]] = level - sorted_loads[:lowest]
    shares[order[:rest]] += 1
    return shares


def deal(sizes_bytes: np.ndarray, loads: np.ndarray) -> np.ndarray:
    """int64[N]: which of K replicas serves each copy. sizes: int64[N], in order; loads: int64[K], bytes.

    Neighbours stay together. No replica ends above the common level by more than one copy.
    """
    bounds = np.cumsum(fill(loads, int(sizes_bytes.sum())))
    middle = 2 * np.cumsum(sizes_bytes) - sizes_bytes
    # A middle on a bound goes to the share that follows; shares of nothing are passed over.
    chosen = np.searchsorted(2 * bounds, middle, "right")
    return np.minimum(chosen, int(np.searchsorted(bounds, bounds[-1], "left")))
