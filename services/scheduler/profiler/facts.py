"""The facts that a stage's figures depend on: the model, this machine, settings of the run file."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from earl.config.run import RunConfig
from earl.models.source import cache_directory
from earl.models.spec import ModelSpec
from earl.obs.machine import installed, machine
from services.scheduler.profiler.cache import Cache

_SMI_S = 20.0
# Keys of the run file that change how fast or how large a stage is.
_SETTINGS = {
    "rollout": ("engine", "engine_python", "device", "threads", "dtype"),
    "reference": ("device", "threads", "microbatch_tokens"),
    "trainer": (
        "device", "threads", "dtype", "importance", "activation_checkpointing", "lora_rank", "lora_targets",
        "minibatches", "passes", "microbatch_tokens", "share_prefixes",
    ),
}  # fmt: skip


def cache_of(stage: str, config: RunConfig, spec: ModelSpec, kept: Path | None = None) -> Cache:
    """Opens the cache of a stage's measurements on this machine. kept: directory of all; None: below EARL's
    cache.
    """
    return Cache(kept or cache_directory() / "profiles", stage, facts_of(stage, config, spec))


def facts_of(stage: str, config: RunConfig, spec: ModelSpec) -> dict[str, Any]:
    """Model, hardware and settings that a stage's figures depend on."""
    section = {"rollout": config.rollout, "reference": config.reference, "trainer": config.trainer}[stage]
    settings: dict[str, Any] = {name: getattr(section, name) for name in _SETTINGS[stage]}
    settings["deterministic"] = config.deterministic
    if stage == "rollout" and config.rollout.kv_tokens:
        # What waits for space in the KV cache is not running.
        settings["kv"] = [config.rollout.kv_tokens, config.rollout.tp]
    if stage == "reference":
        settings["dtype"] = config.trainer.dtype
    if stage == "trainer":
        settings["kl"] = config.trainer.kl_coefficient > 0
    return {
        "model": {**asdict(spec), "dtype": config.model.weight_dtype},
        "hardware": {**machine(), "gpus": _gpus() if section.device != "cpu" else []},
        "settings": settings,
        "earl": installed("earl"),
    }


def _gpus() -> list[str]:
    """Names of the GPUs that the driver's own tool finds."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        done = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, check=False, timeout=_SMI_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []
