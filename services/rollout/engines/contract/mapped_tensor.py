"""Mapped memory as a tensor of torch's."""

from __future__ import annotations

import warnings

import numpy as np
import torch


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """The array as a tensor that is only to be read: torch warns that one could write to memory that is
    mapped read-only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
