"""Table 1: bytes of a batch from EARL's own columns, over context lengths and workers.

Every worker reserves the columns of its trajectories in a real arena, as a rollout worker does; what the
arrays of all workers take is counted, and that the arena has given for them.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paper.figure import PaperFigure
from benchmarks.paper.settings import PaperSettings
from benchmarks.record.progress import counted
from earl.bus.connection import open_redis
from earl.dispatch.memory.allocator import occupied, rounded
from earl.dispatch.memory.arena import Arena
from earl.dispatch.publish.sequence_store import SequenceStore
from earl.dispatch.registry.registry import Registry
from earl.episode_contract import SAMPLED_COLUMNS

CONTEXTS = (1024, 2048, 4096, 8192, 16_384, 32_768)
WORKERS = (1, 2, 4, 8, 16)
SEQUENCES = 8
SPARE_BYTES = 1 << 20
# The trainer's own column beside those that rollout workers publish (services/trainer/step/batch.py).
REFERENCE_BYTES = np.dtype(np.float32).itemsize
# The paper's estimate: a batch on so many GPUs at 1K tokens, which grows to about 500 GB at 32K.
PAPER_GPUS = 1000
PAPER_BYTES = 15.6 * (1 << 30)
PAPER_TOKENS = 1024
# An arena gives whole grains of 4 KiB: of 1,024 tokens up to 6 % more than the columns have.
GOALS = {"deviation_from_linear_max": 0.06}
COMPARES = (
    "The bytes of one batch: sequences of every worker, each of the full context, with the columns that "
    "EARL's rollout workers publish of a trajectory. Every worker is an arena of this process; all "
    "columns are reserved in it and counted. arena_bytes: what the arenas gave for them, rounded to their "
    "grains. deviation_from_linear_max: the largest relative distance of these from bytes a token x "
    "tokens. The paper estimates a batch on 1,000 GPUs and does not say which tensors it has or how many "
    "sequences a GPU has; its bytes of a token of context on each GPU are therefore also given in "
    "sequences of EARL's columns."
)


def figure(settings: PaperSettings) -> PaperFigure:
    return PaperFigure("table1", {"sequences": SEQUENCES}, measure, GOALS)


def token_bytes() -> int:
    """Bytes of one token in the columns that rollout workers publish."""
    return sum(np.dtype(dtype).itemsize for dtype in SAMPLED_COLUMNS.values())


def measure() -> dict[str, Any]:
    """Makes the table."""
    grid = list(itertools.product(CONTEXTS, WORKERS))
    rows = [batch(context, workers) for context, workers in counted("batches of table1", grid)]
    each = token_bytes()
    deviation = max(abs(row["arena_bytes"] / (row["tokens"] * each) - 1) for row in rows)
    on_each_gpu = PAPER_BYTES / PAPER_GPUS / PAPER_TOKENS
    return {
        "compares": COMPARES,
        "token_bytes": each,
        "token_bytes_with_reference": each + REFERENCE_BYTES,
        "columns": dict(SAMPLED_COLUMNS),
        "deviation_from_linear_max": round(deviation, 6),
        "paper_token_bytes_per_gpu": round(on_each_gpu),
        "paper_sequences_per_gpu": round(on_each_gpu / (each + REFERENCE_BYTES)),
        "contexts": [next_to_paper(context, rows) for context in CONTEXTS],
        "rows": rows,
    }


def batch(context_tokens: int, workers: int) -> dict[str, int]:
    """A batch of SEQUENCES trajectories of this length on every worker."""
    columns = list(SAMPLED_COLUMNS.items())
    longest = sum(rounded(np.dtype(dtype).itemsize * context_tokens) for _, dtype in columns)
    size_bytes = SEQUENCES * occupied(longest) + SPARE_BYTES
    # Nothing is published: the registry is never connected to.
    registry = Registry(open_redis("redis://127.0.0.1:1"), "{earl:bench}:", 60.0)
    total = {"bytes": 0, "arena_bytes": 0}
    with tempfile.TemporaryDirectory(prefix="earl-bench-", dir="/dev/shm") as arenas:
        for worker in range(workers):
            arena = Arena.create(Path(arenas), f"worker-{worker}", 1, size_bytes)
            try:
                store = SequenceStore(arena, registry, f"worker-{worker}", columns, checksum=False)
                for sequence in range(SEQUENCES):
                    arrays = store.reserve(str(sequence), context_tokens)
                    total["bytes"] += sum(array.nbytes for array in arrays.values())
                total["arena_bytes"] += arena.capacity_bytes - arena.free_bytes
                arrays = {}
                store.cancel(store.names)
            finally:
                arena.close()
    tokens = context_tokens * SEQUENCES * workers
    return {"context_tokens": context_tokens, "workers": workers, "tokens": tokens, **total}


def next_to_paper(context_tokens: int, rows: list[dict[str, int]]) -> dict[str, float]:
    """The bytes of a worker at this length, and the paper's estimate on its 1,000 GPUs."""
    most = max(
        (row for row in rows if row["context_tokens"] == context_tokens), key=lambda row: row["workers"]
    )
    return {
        "context_tokens": context_tokens,
        "worker_mib": round(most["bytes"] / most["workers"] / (1 << 20), 3),
        "batch_mib": round(most["bytes"] / (1 << 20), 2),
        "batch_workers": most["workers"],
        "paper_gib": round(PAPER_BYTES * context_tokens / PAPER_TOKENS / (1 << 30), 1),
    }
