"""Bytes that tests publish, and comparing what was read with them, at any size."""

from __future__ import annotations

import numpy as np

MIB = 1 << 20
# What is made, or compared, at a time: numpy's own comparison of large arrays makes several more as large.
_PERIOD_BYTES = 1_048_583


def random_bytes(size_bytes: int, seed: int = 0) -> np.ndarray:
    """Random bytes that repeat with a prime period: cheap to make, and no misplaced block looks right."""
    return np.resize(_period(size_bytes, seed), size_bytes)


def _period(size_bytes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, min(size_bytes, _PERIOD_BYTES), dtype=np.uint8)


def assert_random(found: np.ndarray, seed: int = 0) -> None:
    """uint8[N] `found` is random_bytes(N, seed)."""
    period = _period(len(found), seed)
    for start in range(0, len(found), _PERIOD_BYTES):
        part = found[start : start + _PERIOD_BYTES]
        _refuse_difference(part, period[: len(part)], start)


def assert_same(found: np.ndarray, expected: np.ndarray | int) -> None:
    """uint8[N] `found` is `expected`, or that value everywhere."""
    whole = np.broadcast_to(np.uint8(expected) if isinstance(expected, int) else expected, found.shape)
    for start in range(0, len(found), _PERIOD_BYTES):
        part = slice(start, start + _PERIOD_BYTES)
        _refuse_difference(found[part], whole[part], start)


def _refuse_difference(found: np.ndarray, expected: np.ndarray, start: int) -> None:
    if not np.array_equal(found, expected):
        first = int(np.flatnonzero(found != expected)[0])
        raise AssertionError(f"byte {start + first} is {found[first]}, not {expected[first]}")
