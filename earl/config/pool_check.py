"""The check of a run whose rollout and trainer draw on one pool of devices."""

from __future__ import annotations

import json

from earl.config.run import RunConfig
from earl.errors import ConfigError


def check_pool(config: RunConfig) -> None:
    """Raises ConfigError where devices cannot go from one stage to the other in this run."""
    pool, rollout, trainer = config.stack.pool_devices, config.rollout, config.trainer
    if not pool:
        return
    begins = rollout.workers * rollout.engines * rollout.tp
    if begins + trainer.ranks != pool:
        raise ConfigError(
            f"stack.pool_devices = {pool} devices, and the run begins with {begins} for rollout and "
            f"{trainer.ranks} for the trainer",
            "make it the sum of rollout.engines x tp and trainer.ranks",
        )
    for key, value, needed in (
        ("rollout.workers", rollout.workers, 1),
        ("rollout.engine", rollout.engine, "torch"),
        ("rollout.device", rollout.device, "cpu"),
        ("trainer.device", trainer.device, "cpu"),
        ("stack.share", config.stack.share == "alternate" and "alternate", False),
    ):
        if value != needed:
            text = json.dumps(needed)
            raise ConfigError(
                f"{key} = {value!r} with stack.pool_devices = {pool}: only devices of processors, paced ones "
                "included, go from one stage to the other yet",
                f"set {key} = {text}, or remove stack.pool_devices",
            )
    if config.frozen is not None:
        raise ConfigError(
            f"stack.pool_devices = {pool} with an opponent that is a frozen version: it has engines",
            "remove opponent, or stack.pool_devices",
        )
