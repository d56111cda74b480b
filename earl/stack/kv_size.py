"""Resolves `rollout.kv_tokens = 0` where a run is launched on GPUs, by the memory that is predicted there.

One size holds for all engines of a run, and a resumed run keeps what it has. The prediction is the
scheduler's (services/scheduler/memory), in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.placement import Placement

PREDICT_S = 60.0
_COMMAND = ("-m", "services.scheduler.profiler.node_probe")


def with_kv_tokens(
    config: RunConfig, placement: Placement, gpu_bytes: int, run_json: Path | None = None
) -> RunConfig:
    """The configuration with the KV that fits beside everything else on the GPUs.

    gpu_bytes: of the smallest GPU. run_json: of the run that is resumed; if it is there, what it has is kept.
    Unchanged where the run file names a number or engines compute on the processor. Raises ConfigError.
    """
    if config.rollout.kv_tokens or "rollout-0" not in placement.on_gpus:
        return config
    if run_json is not None and run_json.is_file():
        kept = RunConfig.model_validate_json(run_json.read_bytes()).rollout.kv_tokens
        return _with(config, kept)
    # Not the bus: its URL may hold a password.
    run = config.model_dump(mode="json", exclude_defaults=True, exclude={"bus"})
    given = {"run": run, "gpus": placement.gpus, "device_bytes": gpu_bytes}
    try:
        done = subprocess.run(
            [sys.executable, *_COMMAND],
            input=json.dumps(given),
            capture_output=True,
            check=True,
            timeout=PREDICT_S,
            text=True,
        )
        probed = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ConfigError(
            f"the memory of the run cannot be predicted: {' '.join(_COMMAND)} failed ({error})",
            "give rollout.kv_tokens a number",
        ) from error
    if probed["error"] is not None:
        raise ConfigError(probed["error"]["message"], probed["error"]["remedy"])
    return _with(config, int(probed["facts"]["kv_tokens"]))


def _with(config: RunConfig, kv_tokens: int) -> RunConfig:
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"kv_tokens": kv_tokens})})
