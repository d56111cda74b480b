"""The stages that draw on one pool of devices: what each begins with, keeps in any case, and may have.

They are rollout, trainer, and the reference stage where the run has one (`stack.pool_devices`).
"""

from __future__ import annotations

import math

from earl.config.run import RunConfig
from earl.parallelism import POOLED, REFERENCE, REWARD_MODEL, ROLLOUT, TEACHER, TRAINER, Parallelism


def pooled_stages(config: RunConfig) -> tuple[str, ...]:
    """The stages of a run that draw on its pool, if it has one: the first ones of POOLED."""
    return POOLED if config.trainer.uses_reference else POOLED[:2]


def first_devices(config: RunConfig) -> dict[str, int]:
    """The devices that each stage of the pool begins with, by the run file."""
    return {stage: _first_devices(config)[stage] for stage in pooled_stages(config)}


def first_layouts(config: RunConfig) -> dict[str, Parallelism]:
    """The parallelism that each stage of the pool begins with, by the run file."""
    rollout, reference = config.rollout, config.reference
    layouts = {
        ROLLOUT: Parallelism(rollout.workers * rollout.engines, rollout.tp),
        TRAINER: config.trainer.parallelism,
        REFERENCE: Parallelism(reference.dp, reference.tp),
    }
    return {stage: layouts[stage] for stage in pooled_stages(config)}


def fewest_devices(config: RunConfig) -> dict[str, int]:
    """The devices that each stage of the pool keeps in any case: those of one replica, or one where a profile
    decides which replica."""
    if config.selects_layouts:
        return dict.fromkeys(pooled_stages(config), 1)
    return {stage: math.prod(layout.replica) for stage, layout in first_layouts(config).items()}


def most_devices(config: RunConfig, stage: str) -> int:
    """The devices that a stage could ever have in a run: those that the others need not keep. Without a pool
    those that it begins with."""
    pool = config.stack.pool_devices
    if not pool:
        return _first_devices(config)[stage]
    return pool - sum(count for other, count in fewest_devices(config).items() if other != stage)


def _first_devices(config: RunConfig) -> dict[str, int]:
    rollout, reference = config.rollout, config.reference
    return {
        ROLLOUT: rollout.workers * rollout.engines * rollout.tp,
        TRAINER: config.trainer.ranks,
        REFERENCE: reference.dp * reference.tp,
        TEACHER: config.teacher.dp * config.teacher.tp,
        REWARD_MODEL: config.reward_model.dp * config.reward_model.tp,
    }
