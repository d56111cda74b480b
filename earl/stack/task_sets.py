"""A run's task sets, and their record in its directory: a resumed run has the tasks that it began with."""

from __future__ import annotations

import json
from pathlib import Path

from earl.config.run import RunConfig
from earl.config.task_set import TaskSet, check_unchanged, recorded, task_set_of
from earl.errors import ConfigError
from earl.stack.run_files import replace

TASK_SETS = "task-sets.json"


def task_sets_of(config: RunConfig, directory: Path) -> dict[str, TaskSet]:
    """The task sets by the label of their environment.

    Raises ConfigError for a set that cannot be read, that leaves nothing to evaluate though the run
    evaluates, or that is not the one that the run in this directory began with.
    """
    sets = {entry.label: task_set_of(entry.section, entry.label) for entry in config.mixture}
    known = {label: tasks for label, tasks in sets.items() if tasks is not None}
    for label, tasks in known.items():
        if config.evaluation.episodes and not config.evaluation.record and not tasks.held_out:
            raise ConfigError(
                f"none of the {tasks.tasks:,} tasks of {label} is held out for evaluation",
                "raise held_out, give more tasks, or set evaluation.episodes = 0",
            )
    written = directory / TASK_SETS
    if written.is_file():
        check_unchanged(recorded(known), json.loads(written.read_text(encoding="utf-8")))
    return known


def record_task_sets(sets: dict[str, TaskSet], directory: Path) -> None:
    """Writes what a later launch compares its task sets with; a run without any has no such file."""
    if sets:
        replace(directory / TASK_SETS, json.dumps(recorded(sets), indent=1) + "\n")
