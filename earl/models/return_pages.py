"""Returns memory that is free in this process to the system, so that other processes can take it."""

from __future__ import annotations

import ctypes
import sys

import torch


def return_pages() -> None:
    """Gives the system what is free now, even if the allocators were told to keep it: after much memory
    changed hands."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
