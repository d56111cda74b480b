"""The check of a run whose stages draw on one pool of devices."""

from __future__ import annotations

import json

from earl.config.device_pool import first_devices
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.parallelism import REFERENCE, ROLLOUT, TRAINER

# The keys that say how many devices a stage begins with.
KEYS = {ROLLOUT: "rollout.engines x tp", TRAINER: "trainer.ranks", REFERENCE: "reference.dp x tp"}


def check_pool(config: RunConfig) -> None:
    """Raises ConfigError where devices cannot go from one stage to another in this run."""
    pool, rollout = config.stack.pool_devices, config.rollout
    if not pool:
        return
    begins = first_devices(config)
    if sum(begins.values()) != pool:
        names = {ROLLOUT: ROLLOUT, TRAINER: "the trainer", REFERENCE: "the reference stage"}
        parts = [f"{count} for {names[stage]}" for stage, count in begins.items()]
        raise ConfigError(
            f"stack.pool_devices = {pool} devices, and the run begins with {_joined_text(parts)}",
            f"make it the sum of {_joined_text([KEYS[stage] for stage in begins])}",
        )
    for key, value, needed in (
        ("rollout.workers", rollout.workers, 1),
        ("rollout.engine", rollout.engine, "torch"),
        *((f"{stage}.device", getattr(config, stage).device, "cpu") for stage in begins),
        ("stack.share", config.stack.share == "alternate" and "alternate", False),
    ):
        if value != needed:
            text = json.dumps(needed)
            raise ConfigError(
                f"{key} = {value!r} with stack.pool_devices = {pool}: only devices of processors, paced ones "
                "included, go from one stage to another yet",
                f"set {key} = {text}, or remove stack.pool_devices",
            )
    if config.frozen is not None:
        raise ConfigError(
            f"stack.pool_devices = {pool} with an opponent that is a frozen version: it has engines",
            "remove opponent, or stack.pool_devices",
        )


def _joined_text(parts: list[str]) -> str:
    """A list in words: "a and b", "a, b and c"."""
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
