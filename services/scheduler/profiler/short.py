"""The short profile that a launch takes by itself: where the selector has none and it is soon done.

stages with layouts to choose from ─► layouts without rows ─► predicted within scheduler.profile_s ─► measured
                                                                └─ longer: logged, with the command for it
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from earl.config.run import RunConfig
from earl.models.spec import ModelSpec, load_spec
from earl.obs.machine import computes_on_gpu
from earl.parallelism import REFERENCE, STAGES, Parallelism
from services.scheduler.profile.plan import ProfilePoint
from services.scheduler.profile.predict import predicted_s, short_points
from services.scheduler.profile.stages import SHORTEST, largest, parallelisms, plan_of
from services.scheduler.profiler.facts import cache_of
from services.scheduler.profiler.measure import Measuring, Say


@dataclass(frozen=True, slots=True)
class ShortProfile:
    """The part of a stage's profile that is missing. layouts: those without a row; seconds: predicted for the
    points of all of them.
    """

    stage: str
    layouts: list[Parallelism]
    points: tuple[ProfilePoint, ...]
    seconds: float


def short_profiles(config: RunConfig, spec: ModelSpec, kept: Path | None = None) -> list[ShortProfile]:
    """The stages that could choose between layouts and know too little of them, the soonest measured first.

    kept: directory of what was measured; None: below EARL's cache.
    """
    lacks: list[ShortProfile] = []
    for stage in STAGES:
        if stage == REFERENCE and not config.trainer.uses_reference:
            continue
        layouts = parallelisms(stage, config, spec)
        known = {row.parallelism for row in cache_of(stage, config, spec, kept).rows()}
        missing = [layout for layout in layouts if layout not in known]
        if len(layouts) > 1 and missing:
            longest = min(config.planned_context, spec.max_positions)
            if (pace := config.pace) is not None:
                # What a layout cannot hold tells nothing of how quick it is.
                held = [pace.held_tokens(stage, layout.replica) for layout in layouts]
                longest = int(min(longest, *held))
            points = short_points(longest, largest(stage, config), SHORTEST)
            gpu = computes_on_gpu(getattr(config, stage).device)
            seconds = predicted_s(stage, config, spec, missing, points, gpu=gpu)
            lacks.append(ShortProfile(stage, missing, points, seconds))
    return sorted(lacks, key=lambda short: short.seconds)


async def measure_short(
    config: RunConfig, model: Path, directory: Path, say: Say, kept: Path | None = None
) -> None:
    """Measures what is lacking and predicted to be done within scheduler.profile_s, all stages together.

    model: a checkpoint directory. directory: for jobs and logs. say: gets a line of what is measured, what is
    left out, and each point. Raises ConfigError and ProcessFailed.
    """
    spec = load_spec(model)
    left_s = config.scheduler.profile_s
    for short in short_profiles(config, spec, kept):
        layouts = f"{len(short.layouts)} layout{'s' if len(short.layouts) > 1 else ''} of {short.stage}"
        if short.seconds > left_s:
            say(
                f"{layouts} not measured: about {short.seconds:.0f} s, and scheduler.profile_s leaves "
                f"{max(0.0, left_s):.0f} s; measure them with: earl profile RUN.toml --stage {short.stage}"
            )
            continue
        say(f"measuring {layouts}, about {short.seconds:.0f} s")
        started = time.monotonic()
        lengths, loads = (sorted(set(values)) for values in zip(*short.points, strict=True))
        plan = plan_of(short.stage, config, spec, lengths, loads).only(short.layouts)
        cache = cache_of(short.stage, config, spec, kept)
        with cache.held(fresh=False):
            await Measuring(plan, config, model, directory, cache, say).run(left_s)
        left_s -= time.monotonic() - started
