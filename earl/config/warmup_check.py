"""The checks of a run that imitates recorded episodes, and of one that records them."""

from __future__ import annotations

from earl.config.run import RunConfig
from earl.errors import ConfigError


def check_warmup(config: RunConfig) -> None:
    """Raises ConfigError for recorded episodes that would not be imitated, or not they alone."""
    warmup, played = config.warmup, config.teacher.episodes
    key = f"warmup.episodes = {warmup.episodes!r}" if warmup.episodes else f"teacher.episodes = {played}"
    if not warmup.episodes and not played:
        if warmup.least_reward != "any":
            raise ConfigError(
                f"warmup.least_reward = {warmup.least_reward:g} without recorded episodes has no effect",
                "set warmup.episodes or teacher.episodes, or remove it",
            )
        return
    if not warmup.batches:
        raise ConfigError(
            f"{key} with warmup.batches = 0: nothing would be imitated",
            "set warmup.batches to the batches of imitation, or remove the episodes",
        )
    for entry in config.mixture:
        if shown := entry.section.demonstration_key:
            raise ConfigError(
                f"{key} with demonstration_key = {shown!r} of environment {entry.label}: a warm-up imitates "
                "the one or the other",
                "remove one of them",
            )


def check_record(config: RunConfig) -> None:
    """Raises ConfigError if a run that records trains as well, or has no final evaluation."""
    evaluation = config.evaluation
    if not evaluation.record:
        return
    if config.scheduler.steps or config.warmup.batches:
        raise ConfigError(
            f"evaluation.record = true with scheduler.steps = {config.scheduler.steps} and warmup.batches = "
            f"{config.warmup.batches}: a run that records trains nothing",
            "set both to 0, or record with: earl eval RUN --evaluation.record true",
        )
    if not evaluation.episodes or not evaluation.at_end:
        raise ConfigError(
            f"evaluation.record = true with evaluation.episodes = {evaluation.episodes} and at_end = "
            f"{str(evaluation.at_end).lower()}: the final evaluation is what is recorded",
            "set evaluation.episodes above 0, and at_end = true",
        )
