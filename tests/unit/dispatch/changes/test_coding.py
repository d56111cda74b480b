"""Changed elements: what is coded is decoded, in the shortest form, and what is damaged is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.dispatch.changes.coding import (
    BITMAP,
    BLOCK_ELEMENTS,
    COLUMNS,
    COUNT,
    FORM,
    GAPS,
    INDICES,
    POSITION_BYTES,
    SAME,
    WHOLE,
    block_starts,
    blocks_of,
    changed_elements,
    code_changes,
    refuse_other_digest,
)
from earl.errors import ChangesUnusable

U16 = np.dtype(np.uint16)


def pair(size: int, fraction: float, seed: int = 0, dtype: np.dtype = U16) -> tuple[np.ndarray, np.ndarray]:
    """(old, new), of which about this part of the elements differ."""
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 1 << 16, size).astype(dtype)
    new = old.copy()
    new[rng.random(size) < fraction] += 1
    return old, new


def coded(*pairs: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(table, body) with no byte too many."""
    table = np.zeros((sum(blocks_of(new.size) for _, new in pairs), COLUMNS), np.int64)
    body = np.zeros(sum(new.nbytes + 8 * blocks_of(new.size) for _, new in pairs), np.uint8)
    used = code_changes(pairs, table, body)
    assert used is not None
    return table, body[:used]


def applied(table: np.ndarray, body: np.ndarray, *olds: np.ndarray) -> list[np.ndarray]:
    """The new arrays, every digest compared. Raises ChangesUnusable."""
    starts = block_starts(table, olds[0].itemsize)
    row, news = 0, []
    for old in olds:
        new = old.reshape(-1).copy()
        for first in range(0, new.size, BLOCK_ELEMENTS):
            block = new[first : first + BLOCK_ELEMENTS]
            part = body[starts[row] : starts[row + 1]]
            indices, values = changed_elements(table[row], part, len(block), block.dtype)
            block[indices] = values
            refuse_other_digest(table[row], block)
            row += 1
        news.append(new.reshape(old.shape))
    return news


@pytest.mark.parametrize(
    ("fraction", "form", "most"),
    [
        (0.0, SAME, 0.001),
        (0.0005, INDICES, 0.002),
        (0.01, GAPS, 0.017),
        (0.05, GAPS, 0.08),
        (0.3, BITMAP, 0.37),
        (1.0, WHOLE, 1.001),
    ],
)
def test_each_density_has_its_form_and_bytes(fraction: float, form: int, most: float):
    old, new = pair(2 * BLOCK_ELEMENTS, fraction)
    table, body = coded((old, new))
    assert table[:, FORM].tolist() == [form, form]
    assert table[:, COUNT].sum() == np.count_nonzero(old != new)
    assert (table.nbytes + len(body)) / new.nbytes < most
    np.testing.assert_array_equal(applied(table, body, old)[0], new)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3 * 300), min_size=1, max_size=4),
    fraction=st.sampled_from([0.0, 0.002, 0.02, 0.2, 0.6, 0.97, 1.0]),
    seed=st.integers(0, 1 << 20),
    dtype=st.sampled_from([np.dtype(np.uint16), np.dtype(np.uint8), np.dtype(np.float32)]),
)
def test_what_is_coded_is_decoded(sizes: list[int], fraction: float, seed: int, dtype: np.dtype):
    pairs = [pair(size, fraction, seed + i, dtype) for i, size in enumerate(sizes)]
    table, body = coded(*pairs)
    for (_, new), made in zip(pairs, applied(table, body, *(old for old, _ in pairs)), strict=True):
        assert made.tobytes() == new.tobytes()


def test_gaps_of_every_length_are_decoded():
    """Among them those around 255, which are skipped in steps."""
    size = BLOCK_ELEMENTS
    places = np.cumsum([0, 1, 254, 255, 256, 257, 509, 510, 511, 512, *([3] * 2000)])
    old = np.zeros(size, np.uint16)
    new = old.copy()
    new[places] = 1
    table, body = coded((old, new))
    assert table[0, FORM] == GAPS
    np.testing.assert_array_equal(applied(table, body, old)[0], new)


def test_bits_count_and_not_values():
    """A zero may change its sign, and what is no number is equal to itself."""
    old = np.array([0.0, np.nan, 1.0], np.float32)
    new = np.array([-0.0, np.nan, 1.0], np.float32)
    table, body = coded((old, new))
    assert table[0, COUNT] == 1 and applied(table, body, old)[0].tobytes() == new.tobytes()


def test_a_body_that_is_too_short_ends_the_coding():
    old, new = pair(4096, 0.05)
    table, body = coded((old, new))
    assert code_changes([(old, new)], table.copy(), np.zeros(len(body) - 8, np.uint8)) is None


@pytest.mark.parametrize("fraction", [0.0, 0.002, 0.05, 0.3, 1.0])
def test_a_damaged_byte_is_refused_or_changes_nothing(fraction: float):
    old, new = pair(6000, fraction, seed=3)
    table, body = coded((old, new))
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(150):
        damaged_table, damaged = table.copy(), body.copy()
        words = damaged_table.reshape(-1).view(np.uint8)
        number = int(rng.integers(0, len(words) + len(damaged)))
        part, place = (words, number) if number < len(words) else (damaged, number - len(words))
        part[place] ^= 1 << int(rng.integers(0, 8))
        try:
            made = applied(damaged_table, damaged, old)[0]
        except ChangesUnusable as error:
            assert error.remedy == "read the whole version"
            refused += 1
        else:
            # Padding behind a block.
            assert made.tobytes() == new.tobytes()
    assert refused >= 140


@pytest.mark.parametrize(
    ("form", "count", "positions", "why"),
    [
        (GAPS, 1, [100], "match"),
        (GAPS, 1, [255, 255], "match"),
        (GAPS, 2, [1, 255], "match"),
        (INDICES, 1, [100, 0], "match"),
        (INDICES, 2, [5, 0, 5, 0], "match"),
        (INDICES, 1, [5], "match"),
        (BITMAP, 1, [1], "match"),
        (BITMAP, 1, [0] * 13, "match"),
        (SAME, 1, [], "match"),
        (WHOLE, 99, [], "match"),
        (7, 0, [], "described"),
        (SAME, -1, [], "described"),
        (GAPS, BLOCK_ELEMENTS + 1, [], "described"),
    ],
)
def test_positions_out_of_range_are_refused(form: int, count: int, positions: list[int], why: str):
    """They belong to a block of 100 elements."""
    table = np.zeros((1, COLUMNS), np.int64)
    table[0, [FORM, COUNT, POSITION_BYTES]] = form, count, len(positions)
    body = np.array([*([0] * (2 * max(count, 0))), *positions, *([0] * 8)], np.uint8)
    with pytest.raises(ChangesUnusable, match=why):
        starts = block_starts(table, 2)
        changed_elements(table[0], body[: starts[1]], 100, U16)
