"""How torch computes in a trainer process: threads, memory, and the same bits every time if asked for."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

from earl.config.run import RunConfig

# Parameters of glibc's mallopt, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER = (1 << 31) - 1
_LARGEST_POOLED_BYTES = 1 << 30


def settle(config: RunConfig) -> None:
    """Set up torch as the run file says: threads, and for deterministic runs kernels that give the same bits.

    To be called before anything is computed.
    """
    torch.set_num_threads(config.trainer.threads)
    keep_pages()
    if config.deterministic:
        # What cuBLAS needs for that; read when CUDA is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Filling fresh memory only matters to code that reads what it did not write.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def return_pages() -> None:
    """Give the system what is free now, in spite of keep_pages: after much memory changed hands."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def keep_pages() -> None:
    """Keep freed memory for the next step: each step needs as much again, and fresh pages cost more than
    what is computed on them element by element (a fifth of a bfloat16 step on a CPU). glibc only."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_POOLED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
