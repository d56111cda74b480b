"""The unit of each number of a run file, decided by the end of its name: "step_s" is in seconds.

A key that takes a text, a choice, true or false, a list or a table has no unit. Every other key is a number,
and its name must end with an entry of UNITS, so that a new number is never without a decision.
"""

from __future__ import annotations

from pydantic.fields import FieldInfo

# By the end of a key's name, in whole words; the longest end counts. "": a number without a unit.
UNITS = {
    # Time and size.
    "s": "seconds",
    "heartbeats_per_s": "heartbeats per second",
    "bytes": "bytes",
    "characters": "characters",
    "tokens": "tokens",
    "max_positions": "tokens",
    "staleness": "versions",
    "kl_limit": "nats",
    "logprob_tolerance": "nats",
    # What is counted.
    "batch_groups": "groups",
    "batches": "batches",
    "cpus": "cores",
    "checkpoint_every": "steps",
    "close_groups": "groups",
    "replay.groups": "groups",
    "replay.capacity": "groups",
    "replay.max_age": "versions",
    "replay.reuse": "times",
    "engine_restarts": "restarts",
    "engines": "engines",
    "frozen_every": "steps",
    "episodes": "episodes",
    "give_up_after": "tickets",
    "group_size": "episodes",
    "resample": "replacements",
    "heads": "heads",
    "hosts": "hosts",
    "instances": "tasks",
    "keep_checkpoints": "checkpoints",
    "layers": "layers",
    "max_sequences": "sequences",
    "max_turns": "turns",
    "top_k": "tokens",
    "minibatches": "mini-batches",
    "passes": "passes",
    "quarantine_faults": "faults",
    "ranks": "ranks",
    "requests": "requests",
    "reset_attempts": "hosts",
    "restarts": "restarts",
    "scheduler.attempts": "attempts",
    "seats": "seats",
    "sessions_per_host": "sessions",
    "steps": "steps",
    "stream_events": "events",
    "threads": "threads",
    "transcripts": "trajectories",
    "until": "versions",
    "kubernetes.user": "",
    "vocabulary": "tokens",
    "workers": "workers",
    # Parallelism.
    "cp": "ranks",
    "dp": "replicas",
    "tp": "ranks",
    "rollout.tp": "devices",
    "pool_devices": "devices",
    # Ratios, coefficients and sizes of a model.
    "clip_high": "",
    "clip_low": "",
    "coefficient": "",
    "embedding_std": "",
    "epsilon": "",
    "fraction": "",
    "gae_lambda": "",
    "head_size": "",
    "hidden_size": "",
    "dual_clip": "",
    "importance_cap": "",
    "importance_floor": "",
    "intermediate_size": "",
    "lora_alpha": "",
    "lora_rank": "",
    "lr": "",
    "max_grad_norm": "",
    "min_p": "",
    "nice": "",
    "repetition_penalty": "",
    "rope_theta": "",
    "scale": "",
    "seed": "",
    "temperature": "",
    "token_discount": "",
    "top_p": "",
    "turn_discount": "",
    "value_clip": "",
    "weight_decay": "",
    "held_out": "",
    "protected_kl": "",
    "protected_loss": "",
}


def unit(key: str, field: FieldInfo) -> str | None:
    """The unit of a dotted key's value, "" where it has none; None for a number that UNITS does not know."""
    if field.annotation not in (int, float):
        return ""
    ends = [end for end in UNITS if key == end or key.endswith((f"_{end}", f".{end}"))]
    return UNITS[max(ends, key=len)] if ends else None
