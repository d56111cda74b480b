"""Settings of torch in a trainer process: threads, memory, and the same bits every time if asked for."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

import torch

from earl.config.run import RunConfig
from earl.models.card_settings import settle_card

# Parameters of glibc's mallopt, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_NEVER = (1 << 31) - 1
_LARGEST_POOLED_BYTES = 1 << 30
# Where two others want each core, such a thread gets a twentieth of that.
PACED_NICENESS = 10
_SMALLEST_MAPPED_BYTES = 128 << 10


def settle(config: RunConfig) -> None:
    """Sets torch up as the run file says: threads, and kernels that give equal bits for deterministic runs.

    To be called before anything is computed.
    """
    torch.set_num_threads(config.trainer.threads or 1)
    let_engines_first(config)
    keep_pages()
    settle_card()
    if config.exact_kernels:
        # What cuBLAS needs for that; read when CUDA is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Filling fresh memory only matters to code that reads what it did not write.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def settle_frozen(config: RunConfig, threads: int) -> None:
    """Sets up torch for a rank of a frozen policy: its threads, and its memory as map_large_blocks says.

    To be called before anything is computed.
    """
    torch.set_num_threads(threads or 1)
    let_engines_first(config)
    map_large_blocks()
    settle_card()


def let_engines_first(config: RunConfig) -> None:
    """Gives this thread, and those that it starts, a low priority where devices are simulated.

    Their steps share this machine's cores. An engine's takes milliseconds and is late at once; a pass of this
    stage has seconds.
    """
    if config.pace is not None:
        os.setpriority(os.PRIO_PROCESS, 0, PACED_NICENESS)


def keep_pages() -> None:
    """Keeps freed memory for the next step, in one heap that all threads share.

    Each step needs as much again, and fresh pages cost more than what is computed on them element by element
    (a fifth of a bfloat16 step on a CPU). A heap for each thread would keep what others could use.
    Needs glibc.
    """
    _mallopt({_M_MMAP_THRESHOLD: _LARGEST_POOLED_BYTES, _M_TRIM_THRESHOLD: _NEVER, _M_ARENA_MAX: 1})


def map_large_blocks() -> None:
    """Maps every block of 128 KiB and more by itself, so that it returns to the system when it is freed.

    A forward pass then takes what is in use and no more: glibc's heap kept up to as much again in holes.
    Huge pages, for which torch is asked before its first tensor, make up for the fresh pages. Needs glibc.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    _mallopt({_M_MMAP_THRESHOLD: _SMALLEST_MAPPED_BYTES})


def _mallopt(values: Mapping[int, int]) -> None:
    """Sets parameters of glibc's allocator; does nothing where another C library is used."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in values.items():
            mallopt(parameter, value)
