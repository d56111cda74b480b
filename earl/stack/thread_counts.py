"""`threads = 0` where a run is launched: torch threads of each rank, by the cores of this machine.

A rank that computes on a GPU gets one: its processor only feeds it. Those that compute on the processor share
its cores evenly. The launch decides, its run.json names the numbers, and a resumed run keeps them: they
decide how sums are rounded.
"""

from __future__ import annotations

from pathlib import Path

from earl.config.run import RunConfig

STAGES = ("rollout", "trainer", "reference", "teacher", "reward_model")


def with_threads(config: RunConfig, gpus: int, cores: float, run_json: Path | None = None) -> RunConfig:
    """The configuration with a number of threads for every stage.

    gpus: of this machine that torch can use; cores: that this process may use. run_json: of the run that is
    resumed; if it is there, what it has is kept.
    """
    sections = {name: getattr(config, name) for name in STAGES}
    if all(section.threads for section in sections.values()):
        return config
    before = None
    if run_json is not None and run_json.is_file():
        before = RunConfig.model_validate_json(run_json.read_bytes())
    on_cpu = {name for name, section in sections.items() if not _on_gpu(section.device, gpus)}
    share = max(1, int(cores / max(1, sum(_ranks(config, name) for name in on_cpu))))
    decided = {name: share if name in on_cpu else 1 for name in STAGES}
    if before is not None:
        decided |= {name: getattr(before, name).threads or 1 for name in STAGES}
    changed = {
        name: section.model_copy(update={"threads": section.threads or decided[name]})
        for name, section in sections.items()
    }
    return config.model_copy(update=changed)


def _on_gpu(device: str, gpus: int) -> bool:
    return device == "cuda" or (device == "auto" and gpus > 0)


def _ranks(config: RunConfig, stage: str) -> int:
    """Processes of a stage that compute."""
    rollout = config.rollout
    match stage:
        case "rollout":
            # A frozen opponent has as many of its own.
            return rollout.workers * rollout.engines * rollout.tp * (2 if config.frozen is not None else 1)
        case "trainer":
            return config.trainer.ranks
    frozen = config.frozen_models.get(stage)
    return frozen.dp * frozen.tp if frozen is not None else 0
