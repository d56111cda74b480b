"""Protected environments: the KL on their tokens, and the checks of what that and the retention gate need."""

from __future__ import annotations

from earl.config.mixture import MixtureEntry
from earl.config.run import RunConfig
from earl.config.weight import schedule_of
from earl.errors import ConfigError


def protected_kl(config: RunConfig) -> dict[str, float]:
    """The weight of the KL on the tokens of each protected environment, by its label; {} for none."""
    weight = config.trainer.protected_kl
    return {entry.label: weight for entry in config.mixture if weight and entry.section.protected}


def _is_trained(entry: MixtureEntry) -> bool:
    """Returns whether groups of an environment are issued at any step."""
    return any(weight for _, weight in schedule_of(entry.section.weight))


def check_protected(config: RunConfig) -> None:
    """Raises ConfigError if an environment is never played, or protected without what that needs."""
    for entry in config.mixture:
        if not _is_trained(entry) and not (config.environments and entry.section.protected):
            raise ConfigError(
                f"weight = 0 of environment {entry.label}: it would never be played",
                "give a weight above 0, or remove the entry; a protected entry may have 0, to be evaluated "
                "alone",
            )
    protected = [entry for entry in config.mixture if entry.section.protected]
    if config.trainer.protected_kl > 0 and not any(map(_is_trained, protected)):
        raise ConfigError(
            f"trainer.protected_kl = {config.trainer.protected_kl:g} without a protected environment whose "
            "tokens are trained on would have no effect",
            "set protected = true, and a weight above 0, for an entry of [[environments]]",
        )
    if not protected:
        return
    label = protected[0].label
    if not config.environments:
        raise ConfigError(
            f"protected = true of the only environment {label}: nothing is added beside it",
            "write it as one of several [[environments]], or remove protected",
        )
    for entry in protected:
        if len(entry.section.reward_range) != 2:
            raise ConfigError(
                f"environment {entry.label} is protected and has no reward_range, from whose lower end its "
                "score counts",
                "give the least and the most that an episode may earn: reward_range = [-1, 1]",
            )
    evaluation = config.evaluation
    judged = evaluation.episodes > 0 and evaluation.at_start and evaluation.keep_best
    if config.scheduler.steps and not (judged and (evaluation.at_end or evaluation.every_steps)):
        raise ConfigError(
            f"environment {label} is protected, and evaluation.episodes, at_start, at_end or keep_best "
            "leaves nothing to judge versions by, or keeps none",
            "set evaluation.episodes above 0, and at_start, at_end and keep_best to true",
        )
