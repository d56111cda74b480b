"""Ranks of an engine add up through shared memory: the same bits on each, whatever the size and the pace."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks import tp_sum
from earl.errors import EngineError
from earl.shm import new_memory
from services.rollout.engines.torch.shm_allreduce import SharedSum, available

pytestmark = pytest.mark.skipif(not available(), reason="stores of this machine's processes need fences")

RANK = """
import sys, time, torch
from services.rollout.engines.torch.shm_allreduce import SLOT_BYTES, SharedSum

rank, size, memory = map(int, sys.argv[1:])
sums = SharedSum(memory, rank, size, 20.0)
draw = torch.Generator().manual_seed(5)
sums_of = [(1, torch.float32), (4097, torch.float32), (300, torch.bfloat16), (SLOT_BYTES, torch.float32)]
for number, (count, dtype) in enumerate(sums_of * 25):
    every = [torch.randn(count, generator=draw).to(dtype) for _ in range(size)]
    own = every[rank].clone()
    if number % 10 == rank:
        time.sleep(0.003)  # the others sleep between looks
    sums.add_up(own)
    wanted = every[0].clone()
    for other in every[1:]:
        wanted += other
    assert torch.equal(own, wanted), number
"""


@pytest.mark.parametrize("size", [2, 3])
def test_every_rank_has_the_sum_of_all_in_one_order(size: int):
    memory = new_memory("sums")
    try:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(rank), str(size), str(memory)],
                pass_fds=[memory],
                env=dict(os.environ, OMP_NUM_THREADS="1"),
            )
            for rank in range(size)
        ]
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
