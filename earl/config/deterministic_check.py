"""The check of a run that is to make the same bits however often it is killed."""

from __future__ import annotations

import json
from operator import attrgetter

from earl.config.run import RunConfig
from earl.errors import ConfigError


def check_deterministic(config: RunConfig) -> None:
    """Raises ConfigError if, with deterministic = true, timing could decide what is trained."""
    engine, scheduler = config.rollout.engine, config.scheduler
    if config.exact_kernels and engine != "torch":
        raise ConfigError(
            f'deterministic = {json.dumps(config.deterministic)} with rollout.engine = "{engine}": its '
            "tokens depend on what they are batched with",
            'set rollout.engine = "torch"',
        )
    if not config.exact:
        return
    if scheduler.staleness and config.alternates:
        raise ConfigError(
            f"deterministic = true with scheduler.staleness = {scheduler.staleness} and stack.share = "
            '"alternate": engines that wake load the newest version, not the one that an episode is planned '
            "for",
            'set scheduler.staleness = 0, or a stack.share other than "alternate"',
        )
    if scheduler.selector == "on":
        raise ConfigError(
            'deterministic = true with scheduler.selector = "on": when a stage changes its parallelism would '
            "depend on timing",
            'set scheduler.selector = "observe" or "static"',
        )
    if scheduler.timeout == "truncate":
        raise ConfigError(
            'deterministic = true with scheduler.timeout = "truncate": timing would decide what is trained',
            'set scheduler.timeout = "retry"',
        )
    if scheduler.train_limit_s:
        raise ConfigError(
            f"deterministic = true with scheduler.train_limit_s = {scheduler.train_limit_s:g}: the last step "
            "and the learning rate would depend on timing",
            "remove scheduler.train_limit_s and bound the run by scheduler.steps",
        )
    if key := scheduler.early_close:
        raise ConfigError(
            f"deterministic = true with {key} = {attrgetter(key)(config)}: which episodes are trained would "
            "depend on timing",
            f"remove {key}",
        )
