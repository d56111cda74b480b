"""The rates at which one core codes, checks and applies changed elements, and their share of a version."""

from __future__ import annotations

import statistics
import time

import numpy as np

from benchmarks.reshard.cases import CARRIER
from benchmarks.reshard.host_roles import change
from earl.dispatch.changes.coding import (
    BLOCK_ELEMENTS,
    COLUMNS,
    block_starts,
    blocks_of,
    changed_elements,
    code_changes,
    refuse_other_digest,
)

ELEMENTS = 1 << 25
TIMES = 5


def coding_rates(fraction: float, elements: int = ELEMENTS) -> dict[str, float]:
    """Figures of changes of this fraction of bfloat16 elements, chosen at random; medians of TIMES.

    code_gb_per_s: 1e9 bytes of the new version a second, compared and coded with digests; apply_gb_per_s:
    decoded, written into a copy of the old one, and each block's digest compared. share: coded bytes ÷ the
    version's.
    """
    old = np.random.default_rng(0).integers(0, 1 << 16, elements, CARRIER)
    new = old.copy()
    change({"": new}, fraction, 1)
    table = np.zeros((blocks_of(elements), COLUMNS), np.int64)
    body = np.zeros(new.nbytes, np.uint8)
    coding: list[float] = []
    applying: list[float] = []
    used = 0
    for _ in range(TIMES):
        copy = old.copy()
        started = time.perf_counter()
        used = code_changes([(old, new)], table, body) or 0
        coding.append(time.perf_counter() - started)
        started = time.perf_counter()
        _apply(table, body, copy)
        applying.append(time.perf_counter() - started)
    return {
        "code_gb_per_s": round(new.nbytes / statistics.median(coding) / 1e9, 2),
        "apply_gb_per_s": round(new.nbytes / statistics.median(applying) / 1e9, 2),
        "share": round((used + table.nbytes) / new.nbytes, 4),
    }


def _apply(table: np.ndarray, body: np.ndarray, copy: np.ndarray) -> None:
    starts = block_starts(table, copy.itemsize)
    for row, entry in enumerate(table):
        block = copy[row * BLOCK_ELEMENTS : (row + 1) * BLOCK_ELEMENTS]
        indices, changed = changed_elements(
            entry, body[starts[row] : starts[row + 1]], len(block), block.dtype
        )
        block[indices] = changed
        refuse_other_digest(entry, block)
