"""The checks of self-play against a frozen version."""

from __future__ import annotations

from operator import attrgetter

from earl.config.run import RunConfig
from earl.errors import ConfigError


def check_opponents(config: RunConfig) -> None:
    """Raises ConfigError if a frozen opponent could not be played, or would teach nothing."""
    entries = [entry for entry in config.mixture if entry.section.opponent == "frozen"]
    for entry in entries:
        if entry.seats < 2:
            raise ConfigError(
                f'opponent = "frozen" of environment {entry.label} with seats = 1: there is no other seat',
                "set seats = 2, or remove opponent",
            )
        if entry.group_size % entry.seats or entry.group_size < 2 * entry.seats:
            raise ConfigError(
                f"group_size = {entry.group_size} of environment {entry.label} does not let each of "
                f"{entry.seats} seats learn twice or more, and equally often, from a group",
                f"use {2 * entry.seats} or another multiple of {entry.seats} above it",
            )
    if entries and (key := config.scheduler.early_close):
        raise ConfigError(
            f'{key} = {attrgetter(key)(config)} with opponent = "frozen" of environment {entries[0].label}: '
            "how often each seat learns would depend on which episodes end first",
            f'remove {key}, or set opponent = "current"',
        )
    if entries and config.rollout.engine != "torch":
        raise ConfigError(
            f'opponent = "frozen" with rollout.engine = "{config.rollout.engine}": a second engine of it, '
            "for the opponent, does not share the devices of the first",
            'set rollout.engine = "torch", or opponent = "current"',
        )
    every = sorted({entry.frozen_every for entry in entries})
    if len(every) > 1:
        raise ConfigError(
            f"environments have frozen_every = {' and '.join(map(str, every))}: a worker's opponent is one "
            "version at a time",
            "give all of them one frozen_every",
        )
