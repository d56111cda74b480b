from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.batches.balance import balance


@given(st.lists(st.integers(1, 1000), max_size=60), st.integers(1, 8))
def test_every_sequence_goes_to_one_rank_and_loads_are_balanced(costs: list[int], ranks: int) -> None:
    assigned = balance(costs, ranks)
    assert len(assigned) == ranks
    assert sorted(index for rank in assigned for index in rank) == list(range(len(costs)))
    loads = [sum(costs[index] for index in rank) for rank in assigned]
    # What LPT promises: no rank is above the mean by more than one sequence.
    assert max(loads) <= sum(costs) / ranks + max(costs, default=0)
    assert max(loads) - min(loads) <= max(costs, default=0)
    if len(costs) >= ranks:
        assert all(assigned)
    assert assigned == balance(costs, ranks)


def test_largest_first_beats_order_of_arrival() -> None:
    loads = [sum([5, 5, 4, 4, 3, 3][i] for i in rank) for rank in balance([5, 5, 4, 4, 3, 3], 3)]
    assert loads == [8, 8, 8]


def test_a_group_without_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        balance([1], 0)
