"""The check of the keys that name an algorithm's fragments, and of those that go with them."""

from __future__ import annotations

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.fragments.advantages import ADVANTAGES
from earl.fragments.lookup import check_name
from earl.fragments.names import CREDITS, IMPORTANCE, LOSSES, WITH_CRITIC

# Keys that only a credit with values reads.
OF_CRITIC = ("gae_lambda", "value_coefficient", "value_clip")


def check_algorithm(config: RunConfig) -> None:
    """Raises ConfigError for a name that is no fragment's, and for keys that contradict each other."""
    check_name("scheduler.advantage", config.scheduler.advantage, ADVANTAGES)
    check_name("trainer.loss", config.trainer.loss, LOSSES)
    check_name("trainer.credit", config.trainer.credit, CREDITS)
    check_name("trainer.importance", config.trainer.importance, IMPORTANCE)
    check_importance(config)
    check_credit(config)


def check_importance(config: RunConfig) -> None:
    """Raises ConfigError if tokens on which engine and trainer agree would count nothing."""
    trainer = config.trainer
    if trainer.importance.endswith("masked") and trainer.importance_cap < 1.0:
        raise ConfigError(
            f"trainer.importance_cap = {trainer.importance_cap} with trainer.importance = "
            f"{trainer.importance!r} leaves out what has the same probability for engine and trainer",
            "raise trainer.importance_cap to 1 or more, for example 2",
        )


def check_credit(config: RunConfig) -> None:
    """Raises ConfigError unless the critic gets rewards, and the reference a weight."""
    trainer, advantage = config.trainer, config.scheduler.advantage
    if trainer.credit in WITH_CRITIC and advantage in ADVANTAGES and advantage != "reward":
        raise ConfigError(
            f"trainer.credit = {trainer.credit!r} with scheduler.advantage = {advantage!r}: a critic learns "
            "rewards, and these are differences between them",
            'set scheduler.advantage = "reward"',
        )
    if trainer.turn_rewards and advantage in ADVANTAGES and advantage != "reward":
        raise ConfigError(
            f"trainer.turn_rewards = true with scheduler.advantage = {advantage!r}: that compares sums of "
            "whole episodes, and no turn has a part in them",
            'set scheduler.advantage = "reward", or trainer.turn_rewards = false',
        )
    for key in OF_CRITIC if trainer.credit == "discounted" else ():
        if (value := getattr(trainer, key)) != type(trainer).model_fields[key].default:
            raise ConfigError(
                f'trainer.{key} = {value} with trainer.credit = "discounted" would be used nowhere: there is '
                "no critic",
                f'set trainer.credit = "gae", or remove trainer.{key}',
            )
    if trainer.kl_estimator != "k3" and not trainer.uses_reference:
        raise ConfigError(
            f"trainer.kl_estimator = {trainer.kl_estimator!r} without a KL would be used nowhere",
            "set trainer.kl_coefficient or trainer.protected_kl, or remove trainer.kl_estimator",
        )
