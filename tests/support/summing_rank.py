"""A rank that adds up with others through shared memory, and checks each sum."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

import torch

from services.rollout.engines.torch.shm_allreduce import SLOT_BYTES, SharedSum

SUMS = [(1, torch.float32), (4097, torch.float32), (300, torch.bfloat16), (SLOT_BYTES, torch.float32)]


def add_up(pipe: Connection, rank: int, size: int, inherited: tuple[Any]) -> None:
    """A hundred sums, of sizes below and above what a slot holds. inherited: the memory's descriptor."""
    torch.set_num_threads(1)
    sums = SharedSum(inherited[0].detach(), rank, size, 20.0)
    draw = torch.Generator().manual_seed(5)
    for number, (count, dtype) in enumerate(SUMS * 25):
        every = [torch.randn(count, generator=draw).to(dtype) for _ in range(size)]
        own = every[rank].clone()
        if number % 10 == rank:
            time.sleep(0.003)  # the others sleep between looks
        sums.add_up(own)
        wanted = every[0].clone()
        for other in every[1:]:
            wanted += other
        assert torch.equal(own, wanted), number
