"""Resolves `rollout.kv_tokens = 0`, `rollout.held_context_tokens = 0` and
`trainer.activation_checkpointing = "auto"` where a run is launched, by the memory that is predicted.

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
from earl.obs.limits import host_bytes
from earl.stack.placement import Placement

PREDICT_S = 60.0
_COMMAND = ("-m", "services.scheduler.profiler.node_probe")


def with_predicted_sizes(
    config: RunConfig,
    placement: Placement,
    gpu_bytes: int,
    run_json: Path | None = None,
    machine_bytes: int = 0,
) -> RunConfig:
    """The configuration with checkpointing if the trainer does not fit its GPUs without, with the longest
    context that some layout of the machine holds, and with the KV that fits beside everything else.

    gpu_bytes: of the smallest GPU. run_json: of the run that is resumed; if it is there, what it has is kept.
    machine_bytes: memory of the machine; 0: of this one. What the run file names stays. With
    rollout.max_context_tokens engines on the processor commit what they write; a trainer there keeps its
    activations. Raises ConfigError.
    """
    rollout = config.rollout
    bounds_memory = "rollout-0" in placement.on_gpus or not rollout.max_context_tokens
    kv_is_open = not rollout.kv_tokens and bounds_memory
    context_is_open = not (rollout.max_context_tokens or rollout.held_context_tokens)
    is_auto = config.trainer.activation_checkpointing == "auto"
    if run_json is not None and run_json.is_file() and (kv_is_open or is_auto or context_is_open):
        before = RunConfig.model_validate_json(run_json.read_bytes())
        held = before.rollout.held_context_tokens if context_is_open else rollout.held_context_tokens
        if held or not context_is_open:
            kv_tokens = before.rollout.kv_tokens if kv_is_open else rollout.kv_tokens
            checkpoints = (before if is_auto else config).trainer.checkpoints_activations
            return _with(config, kv_tokens, checkpoints, held)
    if not kv_is_open and not context_is_open and not (is_auto and "trainer" in placement.on_gpus):
        checkpoints = config.trainer.checkpoints_activations
        return _with(config, rollout.kv_tokens, checkpoints, rollout.held_context_tokens)
    # Not the bus: its URL may hold a password.
    run = config.model_dump(mode="json", exclude_defaults=True, exclude={"bus"})
    given = {
        "run": run,
        "gpus": placement.gpus,
        "device_bytes": gpu_bytes,
        "host_bytes": machine_bytes or host_bytes(),
    }
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
            "give rollout.kv_tokens and rollout.max_context_tokens a number, and "
            "trainer.activation_checkpointing true or false",
        ) from error
    if probed["error"] is not None:
        raise ConfigError(probed["error"]["message"], probed["error"]["remedy"])
    facts = probed["facts"]
    checkpoints = bool(facts["activation_checkpointing"])
    return _with(config, int(facts["kv_tokens"]), checkpoints, int(facts["held_context_tokens"]))


def _with(config: RunConfig, kv_tokens: int, checkpointing: bool, held: int) -> RunConfig:
    rollout = config.rollout.model_copy(update={"kv_tokens": kv_tokens, "held_context_tokens": held})
    trainer = config.trainer.model_copy(update={"activation_checkpointing": checkpointing})
    return config.model_copy(update={"rollout": rollout, "trainer": trainer})
