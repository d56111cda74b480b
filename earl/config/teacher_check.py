"""The checks of a run with a teacher."""

from __future__ import annotations

import math

from earl.config.given_model import check_devices, check_heads
from earl.config.run import RunConfig
from earl.config.served_teacher_check import OF_SERVER, check_served_teacher
from earl.errors import ConfigError
from earl.parallelism import TEACHER

# Keys of [teacher] that say nothing without a teacher.
NEEDS_TEACHER = ("rewards", "until", "wean", "score", "episodes")


def check_teacher(config: RunConfig, *, elsewhere: bool = False) -> None:
    """Raises ConfigError, IllegalParallelism and ModelNotFound for a teacher that the run cannot have.

    elsewhere: the run is planned for another machine, and the teacher's checkpoint need not be here.
    """
    teacher = config.teacher
    if not teacher.given:
        _check_unused(config, NEEDS_TEACHER, "teacher.path or teacher.url")
    if not teacher.url:
        _check_unused(config, OF_SERVER, "teacher.url")
    if not teacher.given:
        return
    if teacher.url:
        check_served_teacher(config)
    else:
        if not elsewhere:
            check_heads(TEACHER, teacher, teacher.path)
        check_devices(
            config, teacher.named, "a teacher has devices of its own, and nobody has measured its pace"
        )
    _check_end(config)
    if config.replay.reuse:
        raise ConfigError(
            f"replay.reuse = {config.replay.reuse:g} with {teacher.named}: the columns that are kept for a "
            "replay have no log-probs of a teacher",
            f"remove replay.reuse, or {teacher.named.partition(' ')[0]}",
        )


def _check_unused(config: RunConfig, names: tuple[str, ...], needs: str) -> None:
    """Raises ConfigError for keys of [teacher] that are not their defaults, and that only `needs` uses."""
    teacher = config.teacher
    defaults = type(teacher)()
    for name in names:
        if getattr(teacher, name) != getattr(defaults, name):
            raise ConfigError(
                f"teacher.{name} = {getattr(teacher, name)} without {needs} would be used nowhere",
                f"set {needs}, or remove the key",
            )


def _check_end(config: RunConfig) -> None:
    """Raises ConfigError if the teacher would count for no batch, or nobody could tell how much."""
    teacher, first = config.teacher, config.warmup.batches + 1
    if 0 < teacher.until <= first:
        raise ConfigError(
            f"teacher.until = {teacher.until}, and reinforcement learning starts from version {first}: the "
            "teacher would count in no batch",
            f"give a version above {first}, or 0 for the whole run",
        )
    if not teacher.wean:
        if not teacher.rewards and teacher.until:
            raise ConfigError(
                f"teacher.rewards = false with teacher.until = {teacher.until}: nothing would be learned "
                "from that version on",
                "set teacher.rewards = true, or bound the run by scheduler.steps",
            )
    elif not teacher.rewards:
        raise ConfigError(
            "teacher.wean = true with teacher.rewards = false: a policy that is weaned would learn nothing",
            "set teacher.rewards = true, or teacher.wean = false",
        )
    else:
        _check_score(config)
    if config.exact and (teacher.until or teacher.wean):
        key = "until" if teacher.until else "wean"
        raise ConfigError(
            f"deterministic = true with teacher.{key}: steps that a crash undoes would be repeated without "
            "the teacher",
            f"remove teacher.{key}",
        )


def _check_score(config: RunConfig) -> None:
    """Raises ConfigError unless the policy's return can be compared with the teacher's."""
    lows = {entry.rewards[0] for entry in config.mixture}
    if len(lows) != 1 or not math.isfinite(min(lows)):
        differ = "different ones" if len(lows) > 1 else "no reward_range"
        raise ConfigError(
            "teacher.wean = true compares returns from the least possible reward on, and environments have "
            + differ,
            "give each environment a reward_range with the same lower end, or set teacher.wean = false",
        )
    low, score = min(lows), config.teacher.score
    if isinstance(score, str):
        if not (config.teacher.episodes or config.warmup.episodes):
            raise ConfigError(
                f"teacher.score = {score!r} with teacher.wean = true, and nothing to measure it by",
                "set teacher.episodes, or give the mean reward of an evaluation of the teacher",
            )
    elif score <= low:
        raise ConfigError(
            f"teacher.score = {score:g} with teacher.wean = true must be above {low:g}, the least reward",
            "give the mean reward of an evaluation of the teacher, or set teacher.wean = false",
        )
