"""The teacher's episodes: a run of its own, before the run that imitates them.

NAME ─► NAME-teacher: teacher.path plays teacher.episodes, training's tasks ─► episodes.jsonl ─► NAME
          └─ stopped, or it failed ─► the next launch of NAME continues it; complete ─► taken as it is
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from earl.config.check import cross_check
from earl.config.frozen_stage import TeacherConfig
from earl.config.replay import ReplayConfig
from earl.config.run import RunConfig
from earl.config.scheduler import EvaluationConfig
from earl.config.trainer import WarmupConfig
from earl.errors import ConfigError
from earl.recorded_episodes import RECORDED
from earl.stack.run_files import read_object
from earl.stack.rundir import has_run, run_path
from earl.stack.status import ProcessState, RunStatus

# What the recording is called among the processes of the launch, while it runs.
SHOWN = "teacher's episodes"
# Sections that decide what is recorded: a recording with others is another one.
DECIDING = ("seed", "model", "environment", "environments", "evaluation")
NAME_CHARACTERS = 64
SUFFIX = "-teacher"


def episodes_missing(config: RunConfig) -> bool:
    """Returns whether the teacher is to play before the run."""
    return bool(config.teacher.path and config.teacher.episodes and not config.warmup.episodes)


def recording_of(config: RunConfig) -> RunConfig:
    """The run in which the teacher plays its episodes. Raises what `cross_check` raises."""
    scheduler, teacher = config.scheduler, config.teacher
    evaluation = EvaluationConfig(
        episodes=teacher.episodes, at_start=False, temperature=scheduler.temperature, record=True
    )
    recording = config.model_copy(
        update={
            "name": config.name[: NAME_CHARACTERS - len(SUFFIX)] + SUFFIX,
            "model": config.model.model_copy(update={"path": teacher.path, "shape": None}),
            "teacher": TeacherConfig(),
            "replay": ReplayConfig(),
            "warmup": WarmupConfig(),
            "evaluation": evaluation,
            "scheduler": scheduler.model_copy(
                update={"steps": 0, "train_limit_s": 0.0, "selector": "static", "profile": ""}
            ),
            "trainer": config.trainer.model_copy(
                update={"checkpoint_every": 0, "kl_coefficient": 0.0, "protected_kl": 0.0, "lora_rank": 0}
            ),
        }
    )
    cross_check(recording)
    return recording


def recorded_before(recording: RunConfig) -> Path | None:
    """The file of an earlier launch's recording, if it is complete.

    Raises ConfigError if a run of that name recorded something else.
    """
    directory = run_path(recording)
    if not has_run(directory):
        return None
    before, now = (
        {key: each.get(key) for key in DECIDING}
        for each in (read_object(directory / "run.json"), json.loads(recording.model_dump_json()))
    )
    differing = [key for key in DECIDING if _without_paths(before[key]) != _without_paths(now[key])]
    if differing:
        raise ConfigError(
            f"{directory} holds episodes that were played with another {' and '.join(differing)}",
            f"remove it with: earl rm {directory}, or choose another --name",
        )
    file = directory / RECORDED
    return file if file.is_file() else None


async def record(recording: RunConfig, play: Callable[[RunConfig, bool], Awaitable[bool]]) -> Path | None:
    """The file of the teacher's episodes; None if the recording was stopped.

    play: launches a run, resuming it if asked to, and returns whether it is complete. Raises ConfigError if
    it recorded nothing, and what `play` raises.
    """
    file = recorded_before(recording)
    if file is not None:
        return file
    if not await play(recording, has_run(run_path(recording))):
        return None
    file = run_path(recording) / RECORDED
    if not file.is_file():
        raise ConfigError(
            f"{recording.name} is complete and has no {RECORDED}", f"see the logs in {run_path(recording)}"
        )
    return file


def with_episodes(config: RunConfig, file: Path) -> RunConfig:
    """The run that imitates the recorded episodes."""
    return config.model_copy(
        update={"warmup": config.warmup.model_copy(update={"episodes": str(file.resolve())})}
    )


def shown_as_start(
    show: Callable[[Sequence[ProcessState], RunStatus], None],
) -> Callable[[Sequence[ProcessState], RunStatus], None]:
    """Shows a recording as a process of the launch that is not ready before it has ended."""

    def update(processes: Sequence[ProcessState], status: RunStatus) -> None:
        progress = f"{100 * status.step // status.steps} % played" if status.steps else "starting"
        seconds = max((process.seconds for process in processes), default=0.0)
        failing = any(process.state in ("restarting", "failed") for process in processes)
        state = ProcessState(SHOWN, "restarting" if failing else progress, seconds, 0)
        show([state], dataclasses.replace(status, phase=""))

    return update


def _without_paths(section: Any) -> Any:
    """A section without what a launch decides or makes absolute: task files and dtypes."""
    if isinstance(section, Mapping):
        return {key: _without_paths(value) for key, value in section.items() if key not in ("tasks", "dtype")}
    if isinstance(section, list):
        return [_without_paths(value) for value in section]
    return section
