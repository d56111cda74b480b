"""The check of a run's planned switches of parallelism: what cannot be carried out ends the launch."""

from __future__ import annotations

import json

from earl.config.layout_plan import KEY, LayoutChange, LayoutPlan
from earl.config.model_check import model_heads
from earl.config.run import RunConfig
from earl.errors import ConfigError, IllegalParallelism
from earl.parallelism import ROLLOUT, divisors


def check_plan(config: RunConfig, *, elsewhere: bool = False) -> None:
    """Raises ConfigError for a plan that the run could not follow, IllegalParallelism for a layout in it."""
    plan = config.layout_plan
    if plan is None:
        return
    _check_run(config)
    _check_order(config, plan)
    heads, kv_heads, what = model_heads(config, elsewhere=elsewhere)
    for change in plan.changes:
        _check_heads(change, heads, kv_heads, what)
        _check_memory(config, change, kv_heads)


def _check_run(config: RunConfig) -> None:
    if not config.exact:
        raise ConfigError(
            f"{KEY} with deterministic = {json.dumps(config.deterministic)}: the plan goes by the version "
            "that samples an episode, and here that is whichever is the newest",
            "set deterministic = true, or switch with `earl parallelism set` while the run works",
        )
    if config.alternates:
        raise ConfigError(
            f'{KEY} with stack.share = "alternate": engines that sleep cannot change their layout',
            'set a stack.share other than "alternate"',
        )
    if config.stack.pool_devices:
        raise ConfigError(
            f"{KEY} with stack.pool_devices = {config.stack.pool_devices}: the devices of a pool move "
            "between stages, and their number is not planned",
            "remove stack.pool_devices",
        )


def _check_order(config: RunConfig, plan: LayoutPlan) -> None:
    """Raises ConfigError unless switches are in the order of their steps, in the run, each a change."""
    texts, steps = config.switch.plan, config.scheduler.steps
    before = 0
    layouts = dict(plan.initial)
    changed: dict[str, int] = {}
    for text, change in zip(texts, plan.changes, strict=True):
        if change.step > steps:
            raise ConfigError(
                f"{KEY} has {text!r}, and the run ends with step {steps}",
                f"give a step up to {steps}, or raise scheduler.steps",
            )
        if change.step < before:
            raise ConfigError(
                f"{KEY} has {text!r} after a switch at step {before}", "give them in the order of steps"
            )
        if changed.get(change.stage) == change.step:
            raise ConfigError(
                f"{KEY} has two switches of {change.stage} at step {change.step}", "keep one of them"
            )
        if layouts[change.stage] == change.layout:
            raise ConfigError(
                f"{KEY} has {text!r}, and {change.stage} has {change.layout} already at that step",
                "remove it, or give another layout",
            )
        before = changed[change.stage] = change.step
        layouts[change.stage] = change.layout
        pace = config.pace
        if pace is not None and not pace.has(change.stage, change.layout.replica):
            raise ConfigError(
                f"{KEY} has {text!r}: the table of paced.table has no figures of that layout",
                "give another layout, or a table that has it",
            )


def _check_heads(change: LayoutChange, heads: int, kv_heads: int, what: str) -> None:
    tp, cp = change.layout.tp, change.layout.cp
    named = f"{KEY}: {change.layout} of {change.stage} at step {change.step}"
    legal = divisors(heads, kv_heads)
    if tp not in legal:
        raise IllegalParallelism(
            f"{named} does not divide {what}'s {heads} heads and {kv_heads} key-value heads",
            f"use a tp of {', '.join(map(str, legal))}",
        )
    legal = divisors(heads // tp, max(1, kv_heads // tp))
    if cp not in legal:
        raise IllegalParallelism(
            f"{named}: its cp does not divide the {heads // tp} heads and {max(1, kv_heads // tp)} key-value "
            f"heads that its tp leaves a rank of {what}",
            f"use a cp of {', '.join(map(str, legal))}, or another tp",
        )


def _check_memory(config: RunConfig, change: LayoutChange, kv_heads: int) -> None:
    """Raises ConfigError if an engine of the layout would hold shorter contexts than episodes may have."""
    rollout, bound = config.rollout, config.context_bound
    if change.stage != ROLLOUT or not rollout.kv_tokens or bound.source == "unknown":
        return
    shares = [max(1, kv_heads // tp) for tp in (rollout.tp, change.layout.tp)]
    held = rollout.kv_tokens * shares[0] // shares[1]
    if held < min(bound.tokens, rollout.kv_tokens):
        needed = -(-bound.tokens * shares[1] // shares[0])
        raise ConfigError(
            f"{KEY}: an engine of rollout {change.layout} at step {change.step} holds {held} tokens of KV, "
            f"and contexts may have {bound.tokens} ({bound.source})",
            f"raise rollout.kv_tokens to {needed}, or plan a larger tp",
        )
