"""The checks of a run with a reward model."""

from __future__ import annotations

from earl.config.given_model import check_devices, check_heads
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.parallelism import REWARD_MODEL


def check_reward_model(config: RunConfig, *, elsewhere: bool = False) -> None:
    """Raises ConfigError, IllegalParallelism and ModelNotFound for a reward model that the run cannot have.

    elsewhere: the run is planned for another machine, and the checkpoint need not be here.
    """
    section = config.reward_model
    if not section.path:
        if section.coefficient != type(section)().coefficient:
            raise ConfigError(
                f"reward_model.coefficient = {section.coefficient:g} without reward_model.path would be used "
                "nowhere",
                "set reward_model.path, or remove the key",
            )
        return
    if not elsewhere:
        check_heads(REWARD_MODEL, section, section.path)
    check_devices(
        config,
        f"reward_model.path = {section.path!r}",
        "a reward_model has devices of its own, and nobody has measured its pace",
    )
    if config.teacher.given and not config.teacher.rewards:
        raise ConfigError(
            f"reward_model.path = {section.path!r} with teacher.rewards = false: no reward counts beside the "
            "teacher",
            "set teacher.rewards = true, or remove reward_model.path",
        )
    if config.scheduler.resample:
        raise ConfigError(
            f"scheduler.resample = {config.scheduler.resample} with reward_model.path = {section.path!r}: "
            "groups would be replaced whose rewards from the environment are equal, before they are scored",
            "remove scheduler.resample, or reward_model.path",
        )
