"""The memory model of a run's stages: what their layouts would take of the devices that workers report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from earl.config.run import RunConfig
from earl.models.spec import ModelSpec, load_spec
from earl.obs.machine import computes_on_gpu
from earl.obs.memory import host_bytes
from earl.obs.processor import flags, onednn_bfloat16
from earl.parallelism import Parallelism
from services.scheduler.memory import predict, ranks_here
from services.scheduler.memory.stage_devices import StageDevices, devices_of, gpu_fraction
from services.scheduler.profile.table import MemoryModel
from services.scheduler.state.workers import WorkerRecord

# Points that are kept, for every set of devices that a stage has had.
KEPT = 1 << 16


class ReportedDevices:
    """The devices of all stages, by the records of the workers that took part at the last `refresh`."""

    def __init__(self, workers: Mapping[str, WorkerRecord]) -> None:
        self._workers = workers
        self.refresh()

    def refresh(self) -> None:
        """Takes what workers have reported by now: before decisions, of which each asks many times."""
        self._stages = devices_of(self._workers.values())

    def of(self, stage: str) -> StageDevices:
        """The stage's devices, with what other stages have there."""
        return self._stages.get(stage, StageDevices())


def memory_of(
    config: RunConfig,
    directory: Path,
    stage: str,
    devices: Callable[[str], StageDevices] = lambda stage: StageDevices(),
) -> MemoryModel:
    """The memory model of one stage, for a profile without fractions.

    devices: of a stage, as its workers have reported them. On GPUs it gives fractions of what other stages
    leave of the smallest of them; on CPUs of a rank's part of the host's memory. None before the run has its
    model, and where the stage may compute on GPUs that no worker has reported yet.
    """

    @lru_cache(maxsize=1)
    def spec() -> ModelSpec:
        return load_spec(directory / "model")

    @lru_cache(maxsize=KEPT)
    def on_gpus(known: StageDevices, layout: Parallelism, context_tokens: float, concurrency: float) -> float:
        return gpu_fraction(stage, config, spec(), known.gpus, layout, context_tokens, concurrency)

    @lru_cache(maxsize=KEPT)
    def on_host(layout: Parallelism, context_tokens: float, concurrency: float) -> float:
        taken = predict(
            stage, config, spec(), layout, context_tokens, concurrency, device="cpu",
            packs_bfloat16=onednn_bfloat16(flags()),
        )  # fmt: skip
        return taken.fraction(host_bytes() // ranks_here(config))

    def model(layout: Parallelism, context_tokens: float, concurrency: float) -> float | None:
        known = devices(stage)
        if not (directory / "model").is_dir():
            return None
        if known.gpus:
            return on_gpus(known, layout, context_tokens, concurrency)
        if not known.kinds and computes_on_gpu(getattr(config, stage).device):
            return None
        return on_host(layout, context_tokens, concurrency)

    return model
