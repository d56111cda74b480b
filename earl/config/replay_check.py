"""The checks of trajectories that are trained on again."""

from __future__ import annotations

from earl.config.replay import ReplayConfig
from earl.config.run import RunConfig
from earl.errors import ConfigError


def check_replay(config: RunConfig) -> None:
    """Raises ConfigError if a key of [replay] would have no effect, or no group could be trained again."""
    replay, scheduler = config.replay, config.scheduler
    if not replay.reuse:
        for key, field in ReplayConfig.model_fields.items():
            if getattr(replay, key) != field.default:
                raise ConfigError(
                    f"replay.{key} = {getattr(replay, key)!r} without replay.reuse would be used nowhere",
                    "set replay.reuse = 1 or more, or remove the key",
                )
        return
    if replay.max_age <= scheduler.staleness:
        raise ConfigError(
            f"replay.max_age = {replay.max_age} with scheduler.staleness = {scheduler.staleness}: a group of "
            "which a token was as old when it was trained first is too old at the next step",
            f"set replay.max_age = {scheduler.staleness + 1} or more, or lower scheduler.staleness",
        )
    groups, capacity = (
        replay.batch_part(scheduler.batch_groups),
        replay.kept_groups(scheduler.batch_groups),
    )
    if capacity < groups:
        raise ConfigError(
            f"replay.groups = {groups} exceeds the {capacity} groups that are kept (replay.capacity)"
            if replay.groups
            else f"replay.reuse x scheduler.batch_groups = {groups} groups of a batch exceed the {capacity} "
            "that are kept (replay.capacity, or replay.max_age x scheduler.batch_groups)",
            "raise replay.capacity or replay.max_age, or set a smaller replay.groups",
        )
