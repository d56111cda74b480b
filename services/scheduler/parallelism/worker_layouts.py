"""The parallelism of a stage's workers, each by itself and all together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from earl.errors import IllegalParallelism
from earl.parallelism import Parallelism
from services.scheduler.state.switch_records import Replica
from services.scheduler.state.workers import WorkerRecord


def parallelism_of(worker: WorkerRecord) -> Parallelism:
    return Parallelism(*worker.parallelism)


def name_of(replica: Replica) -> str:
    return str(Parallelism(1, *replica))


def together(workers: Collection[Parallelism]) -> Parallelism:
    """The parallelism of workers with the same replicas, as one."""
    first = next(iter(workers))
    return replace(first, dp=sum(parallelism.dp for parallelism in workers))


def spread_over(before: Mapping[str, Parallelism], replica: Replica) -> list[Parallelism]:
    """Every worker's devices as such replicas. Raises IllegalParallelism naming a worker that cannot."""
    after = []
    for worker, parallelism in before.items():
        spread = Parallelism(1, *replica).over(devices := parallelism.devices)
        if spread is None:
            raise IllegalParallelism(
                f"{worker}'s {devices} device{'s' * (devices != 1)} cannot be split into replicas of "
                f"{name_of(replica)}",
                "choose one whose tp x cp x pp divides them",
            )
        after.append(spread)
    return after


def commonest(workers: Collection[Parallelism]) -> Replica:
    """The replica that most workers have."""
    counts = Counter(parallelism.replica for parallelism in workers)
    return max(counts, key=lambda replica: (counts[replica], replica))
