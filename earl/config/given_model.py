"""The checks of a frozen model that a run file names: teacher.path, reward_model.path."""

from __future__ import annotations

from earl.config.frozen_stage import FrozenModelConfig
from earl.config.model_check import checkpoint_heads
from earl.config.run import RunConfig
from earl.errors import ConfigError, IllegalParallelism
from earl.parallelism import divisors


def check_heads(role: str, section: FrozenModelConfig, path: str) -> None:
    """Raises IllegalParallelism unless the section's tp divides the checkpoint's heads, and ModelNotFound."""
    heads, kv_heads = checkpoint_heads(f"{role}.path", path)
    legal = divisors(heads, kv_heads)
    if section.tp not in legal:
        raise IllegalParallelism(
            f"{role}.tp = {section.tp} does not divide {path}'s {heads} heads and {kv_heads} key-value heads",
            f"use one of {', '.join(map(str, legal))}",
        )


def check_devices(config: RunConfig, named: str, reason: str) -> None:
    """Raises ConfigError for devices that a run with the model cannot have.

    named: the key that names the model, with its value. reason: the sentence of the error.
    """
    for key, value in (
        ("stack.pool_devices", config.stack.pool_devices),
        ("paced.table", config.paced.table),
    ):
        if value:
            raise ConfigError(
                f"{key} = {value!r} with {named}: {reason}",
                f"remove {key}, or {named.partition(' ')[0]}",
            )
