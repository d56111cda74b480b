"""Ranks of an engine add up through shared memory: the same bits on each, whatever the size and the pace."""

from __future__ import annotations

import os

import pytest

from benchmarks import tp_sum
from earl.errors import EngineError
from earl.shm import new_memory
from services.rollout.engines.torch.shm_allreduce import SharedSum, available
from tests.support.forked import Forked
from tests.support.summing_rank import add_up

pytestmark = pytest.mark.skipif(not available(), reason="stores of this machine's processes need fences")


@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_has_the_sum_of_all_in_one_order(size: int):
    memory = new_memory("sums")
    try:
        ranks = [Forked(add_up, rank, size, inherited=(memory,)) for rank in range(size)]
    finally:
        os.close(memory)
    assert [rank.wait(60) for rank in ranks] == [0] * size


def test_a_rank_that_does_not_come_is_named():
    with pytest.raises(EngineError, match="rank 1 of the engine was not there"):
        SharedSum(new_memory("sums"), 0, 2, 0.05)


@pytest.mark.slow
def test_the_benchmark_adds_up_both_ways():
    rows = tp_sum.measure()["tp_sum_us"]
    assert [row["elements"] for row in rows] == list(tp_sum.ELEMENTS)
    assert all(row["shared_memory"] > 0 and row["gloo"] > 0 for row in rows)
