"""The sizes of a stage's model: the run's own, but for a teacher and a reward model."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from earl.config.run import RunConfig
from earl.errors import ModelNotFound
from earl.models.spec import ModelSpec, load_spec
from earl.parallelism import REWARD_MODEL, TEACHER


def spec_of_stage(stage: str, config: RunConfig, spec: ModelSpec) -> ModelSpec:
    """The spec of what a stage computes with. spec: of the run's model.

    A teacher or reward model whose checkpoint is not here as a directory is taken for one of the run's sizes.
    """
    if stage == TEACHER:
        return _given_spec(config.teacher.path) or spec
    if stage == REWARD_MODEL:
        # It has no lm_head.
        return replace(_given_spec(config.reward_model.path) or spec, tied=True)
    return spec


@lru_cache(maxsize=8)
def _given_spec(path: str) -> ModelSpec | None:
    try:
        return load_spec(Path(path).expanduser())
    except ModelNotFound:
        return None
