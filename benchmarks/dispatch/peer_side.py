"""The Ray object store and TransferQueue on the same pattern; runs in an environment of their own.

Started by `peers`, told rounds as JSON lines. Producers and consumers are Ray actors, as many as of any
other arm. A consumer's call depends on its producers' calls, so Ray itself says when they are ready.

    ray            a producer returns its rows: one copy into the object store; a consumer maps them there
                   and copies its half rows into its buffer
    transferqueue  a producer puts both halves as two fields of one sample; a consumer gets the one field
                   that it wants, of two samples, and copies it into its buffer
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np
import ray

from benchmarks.dispatch.pattern import (
    CONSUMERS,
    DTYPE,
    HALF,
    MIB,
    PRODUCERS,
    ROW_BYTES,
    Pattern,
    fill,
    half,
    key,
    readers,
    right,
    sources,
)

FIELDS = ("left", "right")
PARTITION = "bench"
ROUND_S = 100.0
# Less than what `peers` allows for all of the start.
OPEN_S = 400.0


@ray.remote(num_cpus=0)
class Producer:
    """A producer actor, which holds its rows in its own memory."""

    def __init__(self, rank: int, rows: int) -> None:
        self.rank = rank
        self.memory = np.ones((rows, ROW_BYTES // DTYPE.itemsize), DTYPE)
        self.array = self.memory

    def prepare(self, rows: int, number: int) -> None:
        self.array = self.memory[:rows]
        fill(self.array, Pattern(rows).held(self.rank), number)

    def ray(self, rows: int, number: int) -> np.ndarray:
        return self.array

    def open_queue(self) -> None:
        import transfer_queue

        transfer_queue.init()

    def transferqueue(self, rows: int, number: int) -> None:
        import torch
        import transfer_queue
        from tensordict import TensorDict

        sample = torch.from_numpy(self.array).unsqueeze(0)
        fields = {FIELDS[i % 2]: sample[:, :, half(i)] for i in readers(self.rank)}
        transfer_queue.kv_batch_put([key(self.rank, number)], PARTITION, TensorDict(fields, batch_size=1))


@ray.remote(num_cpus=0)
class Consumer:
    """A consumer actor, which gathers its half rows in one contiguous buffer touched before."""

    def __init__(self, rank: int, rows: int) -> None:
        self.rank = rank
        self.memory = np.ones((2 * rows, HALF), DTYPE)

    def ray(self, rows: int, number: int, *produced: np.ndarray) -> tuple[int, int]:
        pattern, target = Pattern(rows), self.memory[: 2 * rows]
        for producer, array in zip(sources(self.rank), produced, strict=True):
            np.copyto(target[pattern.part(self.rank, producer)], array[:, half(self.rank)])
        return time.monotonic_ns(), target.nbytes

    def open_queue(self) -> None:
        import transfer_queue

        transfer_queue.init()

    def transferqueue(self, rows: int, number: int, *produced: None) -> tuple[int, int]:
        import transfer_queue

        pattern, target, field = Pattern(rows), self.memory[: 2 * rows], FIELDS[self.rank % 2]
        keys = [key(producer, number) for producer in sources(self.rank)]
        got = transfer_queue.kv_batch_get(keys, PARTITION, field)[field].unbind(0)
        for producer, tensor in zip(sources(self.rank), got, strict=True):
            np.copyto(target[pattern.part(self.rank, producer)], tensor.numpy())
        return time.monotonic_ns(), target.nbytes

    def right(self, rows: int, number: int) -> bool:
        return right(self.memory[: 2 * rows], Pattern(rows).target_box(self.rank), number)


class Peers:
    """The actors, and the rounds of each arm."""

    def __init__(self, rows: int, arms: list[str], directory: str) -> None:
        worker_bytes = rows * ROW_BYTES
        ray.init(
            # Tickets, not cores: TransferQueue's controller and its storage units take one each.
            num_cpus=PRODUCERS + 2,
            object_store_memory=3 * PRODUCERS * worker_bytes + 256 * MIB,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            _temp_dir=directory,
        )
        self.producers: list[Any] = [Producer.remote(rank, rows) for rank in range(PRODUCERS)]  # type: ignore[attr-defined]
        self.consumers: list[Any] = [Consumer.remote(rank, rows) for rank in range(CONSUMERS)]  # type: ignore[attr-defined]
        if "transferqueue" in arms:
            import transfer_queue
            from omegaconf import OmegaConf

            units = {"num_data_storage_units": PRODUCERS}
            transfer_queue.init(OmegaConf.create({"backend": {"SimpleStorage": units}}))
            ray.get([actor.open_queue.remote() for actor in self.producers + self.consumers], timeout=OPEN_S)

    def round(self, arm: str, rows: int, number: int) -> dict[str, Any]:
        """Milliseconds until the last consumer is done, bytes moved, and whether every buffer is right."""
        ray.get([actor.prepare.remote(rows, number) for actor in self.producers], timeout=ROUND_S)
        began_ns = time.monotonic_ns()
        produced = [getattr(actor, arm).remote(rows, number) for actor in self.producers]
        consumed = [
            getattr(actor, arm).remote(rows, number, *(produced[i] for i in sources(rank)))
            for rank, actor in enumerate(self.consumers)
        ]
        done = ray.get(consumed, timeout=ROUND_S)
        checked = ray.get([actor.right.remote(rows, number) for actor in self.consumers], timeout=ROUND_S)
        if arm == "transferqueue":
            import transfer_queue

            transfer_queue.kv_clear([key(producer, number) for producer in range(PRODUCERS)], PARTITION)
        return {
            "total_ms": (max(at_ns for at_ns, _ in done) - began_ns) / 1e6,
            "moved_bytes": sum(size for _, size in done) + PRODUCERS * rows * ROW_BYTES,
            "right": all(checked),
        }


def main() -> None:
    # Whatever Ray and its friends print must not stand between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    role = json.loads(sys.stdin.readline())
    peers = Peers(role["rows"], role["arms"], role["directory"])
    answers.write(json.dumps({"versions": {"ray": ray.__version__}}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(peers.round(**json.loads(line))) + "\n")
    ray.shutdown()


if __name__ == "__main__":
    main()
