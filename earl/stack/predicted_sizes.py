"""Resolves `rollout.kv_tokens = 0` and `trainer.activation_checkpointing = "auto"` where a run is launched,
by the memory that is predicted on its GPUs.

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


def with_predicted_sizes(
    config: RunConfig, placement: Placement, gpu_bytes: int, run_json: Path | None = None
) -> RunConfig:
    """The configuration with checkpointing if the trainer does not fit its GPUs without, and with the KV that
    fits beside everything else there.

    gpu_bytes: of the smallest GPU. run_json: of the run that is resumed; if it is there, what it has is kept.
    What the run file names stays; engines on the processor commit what they write, and a trainer there keeps
    its activations. Raises ConfigError.
    """
    kv_is_open = not config.rollout.kv_tokens and "rollout-0" in placement.on_gpus
    is_auto = config.trainer.activation_checkpointing == "auto"
    if run_json is not None and run_json.is_file() and (kv_is_open or is_auto):
        before = RunConfig.model_validate_json(run_json.read_bytes())
        kv_tokens = before.rollout.kv_tokens if kv_is_open else config.rollout.kv_tokens
        return _with(config, kv_tokens, (before if is_auto else config).trainer.checkpoints_activations)
    if not kv_is_open and not (is_auto and "trainer" in placement.on_gpus):
        return _with(config, config.rollout.kv_tokens, config.trainer.checkpoints_activations)
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
            "give rollout.kv_tokens a number, and trainer.activation_checkpointing true or false",
        ) from error
    if probed["error"] is not None:
        raise ConfigError(probed["error"]["message"], probed["error"]["remedy"])
    facts = probed["facts"]
    return _with(config, int(facts["kv_tokens"]), bool(facts["activation_checkpointing"]))


def _with(config: RunConfig, kv_tokens: int, checkpointing: bool) -> RunConfig:
    rollout = config.rollout.model_copy(update={"kv_tokens": kv_tokens})
    trainer = config.trainer.model_copy(update={"activation_checkpointing": checkpointing})
    return config.model_copy(update={"rollout": rollout, "trainer": trainer})
