"""The common prefix of two token sequences."""

from __future__ import annotations

import numpy as np


def common_prefix(ids: np.ndarray, other: np.ndarray) -> int:
    """The length of the common prefix of ids [N] and other [M]."""
    shorter = min(len(ids), len(other))
    differ = np.flatnonzero(ids[:shorter] != other[:shorter])
    return int(differ[0]) if len(differ) else shorter
