"""The common prefix of two token sequences."""

from __future__ import annotations

import numpy as np
import pytest

from earl.models.common_prefix import common_prefix


@pytest.mark.parametrize(
    ("ids", "other", "length"),
    [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([4], [5], 0), ([7, 8], [7, 8], 2)],
)
def test_it_ends_at_the_first_difference_or_with_the_shorter(
    ids: list[int], other: list[int], length: int
) -> None:
    first, second = np.array(ids, np.int64), np.array(other, np.int64)
    assert common_prefix(first, second) == common_prefix(second, first) == length
