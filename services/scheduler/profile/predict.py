"""Predicts how long a short profile of a stage takes, before anything is started. Pure.

    points of the short grid ─► windows of each ─┐
    devices, dtype, parameters ─► work of each ──┴─► seconds of each layout, its start included

The prediction decides whether a launch takes the profile, so it is rather too high than too low.
"""

from __future__ import annotations

from earl.config.run import RunConfig
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from services.scheduler.profile.plan import LEAST, ProfilePoint

# Seconds that processes of a layout take to start and end, measured on two cores; with an engine that is not
# EARL's own it is what vLLM takes to load.
START_S = {"rollout": 5.0, "reference": 5.0, "trainer": 5.0}
FOREIGN_ENGINE_S = 60.0
# A window and what prepares it take this long at least.
VISIT_S = 0.5
# Floating-point operations a second, of one thread of a processor and of one GPU, in a layer's products.
THREAD_FLOPS = 2e10
GPU_FLOPS = 5e13
# Bytes a second of reading a checkpoint from a disk.
LOAD_RATE = 5e8
# Operations for each token and parameter: forward, and forward with backward.
FORWARD, TRAINING = 2, 6


def short_points(longest: int, largest: int, shortest: int) -> tuple[ProfilePoint, ...]:
    """The points of a short profile: the run's largest load, at its longest context and at a quarter of it.

    shortest: length in tokens below which no sequence is measured.
    """
    lengths = sorted({max(longest // 4, shortest), max(longest, shortest)})
    return tuple(ProfilePoint(length, largest) for length in lengths)


def predicted_s(
    stage: str,
    config: RunConfig,
    spec: ModelSpec,
    layouts: list[Parallelism],
    points: tuple[ProfilePoint, ...],
    *,
    gpu: bool,
) -> float:
    """Seconds for LEAST windows of each point in each of these layouts. gpu: where the stage computes."""
    return sum(
        _start_s(stage, config, spec)
        + LEAST * sum(_visit_s(stage, config, spec, layout, point, gpu) for point in points)
        for layout in layouts
    )


def _start_s(stage: str, config: RunConfig, spec: ModelSpec) -> float:
    foreign = stage == "rollout" and config.rollout.engine != "torch"
    return (FOREIGN_ENGINE_S if foreign else START_S[stage]) + 4 * spec.parameters / LOAD_RATE


def _visit_s(
    stage: str, config: RunConfig, spec: ModelSpec, layout: Parallelism, point: ProfilePoint, gpu: bool
) -> float:
    section = {"rollout": config.rollout, "reference": config.reference, "trainer": config.trainer}[stage]
    rate = layout.devices * (GPU_FLOPS if gpu else THREAD_FLOPS * (section.threads or 1))
    if stage == "rollout":
        # One context is computed and copied; of each sequence a few tokens are generated.
        tokens = point.context_tokens + 8 * point.concurrency
        operations = FORWARD * tokens
    elif stage == "reference":
        operations = FORWARD * point.work
    else:
        # A step of another size goes before the window.
        operations = 2 * TRAINING * point.work * config.trainer.passes
    return max(VISIT_S, 2 * operations * spec.parameters / rate)
