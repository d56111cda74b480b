"""The facts that a stage's figures depend on: the model, this machine, settings of the run file."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.models.source import cache_directory
from earl.models.spec import ModelSpec
from earl.obs.machine import computes_on_gpu, installed, machine
from services.scheduler.profiler.cache import Cache

_SMI_S = 20.0
# Keys of the run file that change how fast or how large a stage is.
_SETTINGS = {
    "rollout": ("engine", "engine_python", "device", "threads", "dtype"),
    "reference": ("device", "threads", "microbatch_tokens"),
    "trainer": (
        "device", "threads", "dtype", "importance", "lora_rank", "lora_targets", "minibatches", "passes",
        "microbatch_tokens", "share_prefixes",
    ),
}  # fmt: skip


def cache_of(stage: str, config: RunConfig, spec: ModelSpec, kept: Path | None = None) -> Cache:
    """Opens the cache of a stage's measurements on this machine. kept: directory of all; None: below EARL's
    cache. Raises as facts_of.
    """
    return Cache(kept or cache_directory() / "profiles", stage, facts_of(stage, config, spec))


def facts_of(stage: str, config: RunConfig, spec: ModelSpec) -> dict[str, Any]:
    """Model, hardware and settings that a stage's figures depend on. Raises ConfigError if the stage may
    compute on this machine's GPUs and they cannot be listed."""
    section = {"rollout": config.rollout, "reference": config.reference, "trainer": config.trainer}[stage]
    settings: dict[str, Any] = {name: getattr(section, name) for name in _SETTINGS[stage]}
    settings["deterministic"] = config.exact_kernels
    if config.pace is not None:
        # Figures of simulated devices are no figures of this machine.
        settings["paced"] = [config.pace.table.digest, *astuple(config.pace.scale)]
    if stage == "rollout" and config.rollout.kv_tokens:
        # What waits for space in the KV cache is not running.
        settings["kv"] = [config.rollout.kv_tokens, config.rollout.tp]
    if stage == "reference":
        settings["dtype"] = config.trainer.dtype
    if stage == "trainer":
        settings["microbatch_tokens"] = config.trainer.pass_tokens
        settings["kl"] = config.trainer.uses_reference
        if config.trainer.loss != "clip":
            settings["loss"] = config.trainer.loss
        if config.trainer.credit != "discounted":
            settings["credit"] = config.trainer.credit
        settings["activation_checkpointing"] = config.trainer.checkpoints_activations
    return {
        "model": {**asdict(spec), "dtype": config.model.weight_dtype},
        "hardware": {**machine(), "gpus": _gpus(stage, section.device)},
        "settings": settings,
        "earl": installed("earl"),
    }


def _gpus(stage: str, device: str) -> list[str]:
    """Names of the GPUs that the driver's own tool finds; none for a stage that cannot use any here.

    Where there are GPUs and the tool fails, ConfigError is raised: figures of a GPU must not be kept, or be
    searched, as those of a machine without one.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None or device == "cpu":
        return []
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SMI_S)
    except (OSError, subprocess.SubprocessError) as error:
        if not computes_on_gpu(device):
            return []
        raise ConfigError(
            f"this machine's GPUs cannot be listed, so no profile is known to be of them: {error}",
            f'try again when {" ".join(command)} answers, or set {stage}.device = "cpu"',
        ) from error
    return done.stdout.split("\n")[:-1]
