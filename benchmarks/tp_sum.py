"""The sum that two ranks of an engine make twice a layer: in shared memory, and with gloo, in turn.

Run as a module it is one rank: its number, how many there are, the inherited memory, a file where gloo meets.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.children import REPORT, MeasurementWrong, outputs_of
from benchmarks.record.checkout import ROOT
from earl.shm import new_memory

RANKS = 2
# float32 elements of one decoded token of a small model, and of a batch of 32.
ELEMENTS = (576, 18_432)
ROUNDS = 9
SUMS = 200
RANK_S = 120.0


def measure() -> dict[str, Any]:
    """Microseconds a sum by number of elements, both ways; ratios are medians over the rounds.

    Raises ProcessFailed if a rank fails, DeadlineExceeded.
    """
    memory = new_memory("sums")
    with tempfile.TemporaryDirectory(prefix="earl-bench-sum-") as directory:
        command = [sys.executable, "-m", __name__]
        try:
            ranks = [
                subprocess.Popen(
                    [*command, str(rank), str(RANKS), str(memory), str(Path(directory) / "gloo")],
                    pass_fds=[memory], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                )
                for rank in range(RANKS)
            ]  # fmt: skip
        finally:
            os.close(memory)
        outputs = outputs_of(ranks, "the ranks that add up", RANK_S)
    return {"tp_sum_us": json.loads(outputs[0])}


def _rank(rank: int, ranks: int, memory: int, rendezvous: str) -> None:
    import torch
    import torch.distributed

    from services.rollout.engines.torch.shm_allreduce import SharedSum

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks
    )
    shared = SharedSum(memory, rank, ranks, RANK_S)
    ways: dict[str, Callable[[torch.Tensor], object]] = {
        "shared_memory": shared.add_up,
        "gloo": torch.distributed.all_reduce,
    }
    rows = []
    for elements in ELEMENTS:
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS + 1):
            for name in ways if number % 2 else reversed(ways):
                took = _seconds(ways[name], torch.ones(elements), ranks)
                if number:  # the first warms up
                    seconds[name].append(took)
        row: dict[str, Any] = {name: round(statistics.median(s) * 1e6, 2) for name, s in seconds.items()}
        pairs = zip(seconds["gloo"], seconds["shared_memory"], strict=True)
        row["gloo_over_shared_memory"] = round(statistics.median(a / b for a, b in pairs), 2)
        rows.append({"elements": elements, **row})
    torch.distributed.destroy_process_group()
    if rank == 0:
        print(json.dumps(rows))


def _seconds(add_up: Callable[[Any], object], x: Any, ranks: int) -> float:
    """Seconds of one sum, as a mean over SUMS in a row; every sum is checked."""
    began = ended = time.perf_counter()
    for _ in range(SUMS):
        x.fill_(1.0)
        add_up(x)
        if x[0] != ranks or x[-1] != ranks:
            raise MeasurementWrong(f"{x[0]} and {x[-1]} are no sums of {ranks} ones", REPORT)
        ended = time.perf_counter()
    return (ended - began) / SUMS


if __name__ == "__main__":
    _rank(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
