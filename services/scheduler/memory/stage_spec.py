"""The sizes of a stage's model: the run's own, but for a teacher."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from earl.config.run import RunConfig
from earl.errors import ModelNotFound
from earl.models.spec import ModelSpec, load_spec
from earl.parallelism import TEACHER


def spec_of_stage(stage: str, config: RunConfig, spec: ModelSpec) -> ModelSpec:
    """The spec of what a stage computes with. spec: of the run's model.

    A teacher whose checkpoint is not here as a directory is taken for one of the run's sizes.
    """
    return _teacher_spec(config.teacher.path) or spec if stage == TEACHER else spec


@lru_cache(maxsize=8)
def _teacher_spec(path: str) -> ModelSpec | None:
    try:
        return load_spec(Path(path).expanduser())
    except ModelNotFound:
        return None
