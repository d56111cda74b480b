"""Checksums by box: the same in every layout, another one where a slice is wrong, elsewhere or missing."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from earl.dispatch.layout.box import Box
from services.trainer.reshard import checksum
from services.trainer.reshard.checksum import box_checksum, whole_checksum

DTYPES = (torch.float32, torch.bfloat16)


def random(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def whole(values: torch.Tensor) -> int:
    return box_checksum(values, Box.whole(tuple(values.shape)))


def grid(shape: tuple[int, ...], stops: list[list[int]]) -> list[Box]:
    """The boxes between the stops of each dimension; some may be empty."""
    ranges = [
        list(pairwise([0, *sorted(min(stop, length) for stop in of_dim), length]))
        for length, of_dim in zip(shape, stops, strict=True)
    ]
    return [Box(*map(tuple, zip(*ends, strict=True))) for ends in product(*ranges)]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    stops = [draw(st.lists(st.integers(0, length), max_size=3)) for length in shape]
    boxes = grid(shape, stops)
    # Some are held by several ranks.
    return shape, boxes + draw(st.lists(st.sampled_from(boxes), max_size=3))


@given(layouts(), st.sampled_from(DTYPES))
def test_every_layout_has_the_checksum_of_the_whole(
    layout: tuple[tuple[int, ...], list[Box]], dtype: torch.dtype
) -> None:
    shape, boxes = layout
    values = random(shape, dtype)
    sums = [box_checksum(values[box.slices()].contiguous(), box) for box in boxes]
    assert whole_checksum(shape, boxes, sums) == whole(values)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    values = random((7, 5))
    expected = whole(values)
    for elements in (1, 5, 11):
        monkeypatch.setattr(checksum, "_CHUNK", {"cpu": elements})
        assert whole(values) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_wrong_or_elsewhere_have_another_checksum(dtype: torch.dtype) -> None:
    values = random((6, 6), dtype)
    rows, columns = values.clone(), values.clone()
    rows[[1, 4]], columns[:, [0, 5]] = values[[4, 1]], values[:, [5, 0]]
    blocks = torch.cat([values[3:], values[:3]])
    negated, zeroed, element = values.clone(), values.clone(), values.clone()
    negated[2:4], zeroed[:, 3:], element[5, 5] = -values[2:4], 0, 1e-3
    others = [values, values.T.contiguous(), rows, columns, blocks, negated, zeroed, element]
    assert len({whole(other) for other in others}) == len(others)


def test_a_swap_of_slices_between_ranks_has_another_checksum() -> None:
    values = random((4, 6))
    boxes = grid((4, 6), [[2], [3]])
    slices = [values[box.slices()].contiguous() for box in boxes]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        given_ = list(slices)
        given_[first], given_[second] = slices[second], slices[first]
        sums = [box_checksum(part, box) for part, box in zip(given_, boxes, strict=True)]
        assert whole_checksum((4, 6), boxes, sums) not in (None, whole(values))


def test_a_missing_slice_or_copies_that_differ_have_none() -> None:
    values = random((4,))
    boxes = [Box((0,), (2,)), Box((2,), (4,))]
    sums = [box_checksum(values[box.slices()], box) for box in boxes]
    assert whole_checksum((4,), boxes, sums) == whole(values)
    assert whole_checksum((4,), boxes[:1], sums[:1]) is None
    assert whole_checksum((4,), [*boxes, boxes[1]], [*sums, sums[1]]) == whole(values)
    assert whole_checksum((4,), [*boxes, boxes[1]], [*sums, sums[1] + 1]) is None
    # A rank without a part says nothing.
    assert whole_checksum((4,), [*boxes, Box((0,), (0,))], [*sums, 0]) == whole(values)
