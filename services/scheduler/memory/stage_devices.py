"""The devices of a run's stages, as their workers report them, and what a layout would take of one. Pure.

    WorkerRecord.devices ─► for each stage: its devices, with the ranks that other stages have there
    prediction of one rank × its ranks on the device ÷ what the others' predicted parts leave of it

Ranks of all stages on one device count together: nothing is moved out of it while another stage works. Only
where rollout and trainer take turns, the one keeps no more than its processes there while the other works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from earl.config.run import RunConfig
from earl.models.spec import ModelSpec
from earl.parallelism import ROLLOUT, TRAINER, Parallelism
from services.scheduler.memory.model import predict, worst_load
from services.scheduler.memory.node import CONTEXT_BYTES
from services.scheduler.memory.stage_spec import spec_of_stage
from services.scheduler.state.workers import WorkerRecord

# What is left of a device for a stage is at least this share of it, where others take all: a share of nothing
# is no number.
LEAST_LEFT = 0.01


@dataclass(frozen=True, slots=True)
class StageDevice:
    """A GPU of a stage. ranks: that the stage has there. others: of other stages, each as (stage, parallelism
    of its worker, ranks)."""

    total_bytes: int
    ranks: int
    others: tuple[tuple[str, Parallelism, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StageDevices:
    """The devices of a stage, as far as they are known.

    kinds: "cpu", "cuda", or both; none before a worker has reported. gpus: those that differ.
    """

    kinds: frozenset[str] = frozenset()
    gpus: frozenset[StageDevice] = frozenset()


def devices_of(workers: Iterable[WorkerRecord]) -> dict[str, StageDevices]:
    """The devices of each stage whose workers have reported them."""
    # By device: ranks of a stage in a parallelism.
    holders: dict[str, Counter[tuple[str, Parallelism]]] = {}
    total_bytes: dict[str, int] = {}
    kinds: dict[str, set[str]] = {}
    for worker in workers:
        stage = worker.stage_name
        for device in worker.devices if stage else ():
            kinds.setdefault(stage, set()).add(device.kind)
            if device.kind == "cuda":
                holders.setdefault(device.id, Counter())[stage, Parallelism(*worker.parallelism)] += 1
                total_bytes[device.id] = device.total_bytes
    gpus: dict[str, set[StageDevice]] = {}
    for name, counted in holders.items():
        for stage in {stage for stage, _ in counted}:
            others = sorted(
                (other, layout, ranks) for (other, layout), ranks in counted.items() if other != stage
            )
            mine = sum(ranks for (other, _), ranks in counted.items() if other == stage)
            gpus.setdefault(stage, set()).add(StageDevice(total_bytes[name], mine, tuple(others)))
    return {
        stage: StageDevices(frozenset(reported), frozenset(gpus.get(stage, ())))
        for stage, reported in kinds.items()
    }


def gpu_fraction(
    stage: str,
    config: RunConfig,
    spec: ModelSpec,
    gpus: Iterable[StageDevice],
    parallelism: Parallelism,
    context_tokens: float,
    concurrency: float,
) -> float:
    """The share that a layout of a stage takes of what other stages leave of a GPU, where it is largest.

    parallelism, context_tokens, concurrency: as in predict. Raises IllegalParallelism.
    """
    mine = predict(
        stage, config, spec, parallelism, context_tokens, concurrency, device="cuda", base_bytes=CONTEXT_BYTES
    )
    return max(
        gpu.ranks * mine.total_bytes / max(gpu.total_bytes - taken, LEAST_LEFT * gpu.total_bytes)
        for gpu in gpus
        for taken in (sum(_other_bytes(config, spec, stage, *other) for other in gpu.others),)
    )


def _other_bytes(
    config: RunConfig, spec: ModelSpec, stage: str, other: str, parallelism: Parallelism, ranks: int
) -> int:
    """Predicted bytes of so many ranks of another stage's worker while `stage` works: at the greatest length
    and load, or asleep."""
    if config.alternates and {stage, other} == {ROLLOUT, TRAINER}:
        return ranks * CONTEXT_BYTES
    load = worst_load(config, other, parallelism)
    spec = spec_of_stage(other, config, spec)
    parts = predict(other, config, spec, parallelism, *load, device="cuda", base_bytes=CONTEXT_BYTES)
    return ranks * parts.total_bytes
