"""A run's task sets and their record: what is compared when a run is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.task_sets import TASK_SETS, record_task_sets, task_sets_of


def config(path: Path, **evaluation: object) -> RunConfig:
    environments = [{"name": "a/b", "tasks": str(path), "held_out": 0.3}, {"name": "c", "instances": 40}]
    return RunConfig.model_validate({"name": "x", "environments": environments, "evaluation": evaluation})


def written(path: Path, count: int) -> Path:
    path.write_text("".join(f"{json.dumps({'n': number})}\n" for number in range(count)), encoding="utf-8")
    return path


def test_a_run_continues_with_the_tasks_that_it_began_with(tmp_path: Path) -> None:
    path = written(tmp_path / "tasks.jsonl", 40)
    sets = task_sets_of(config(path), tmp_path)
    assert {label: tasks.tasks for label, tasks in sets.items()} == {"a/b": 40, "c": 40}
    record_task_sets(sets, tmp_path)
    assert task_sets_of(config(path), tmp_path) == sets
    written(path, 41)
    with pytest.raises(
        ConfigError,
        match=r"the tasks of environment a/b are not those that the run began with: 41 of them now, 40 then, "
        r"another file; restore file, held_out and task_key, or start another run with --name NAME",
    ):
        task_sets_of(config(path), tmp_path)


def test_a_run_continues_with_the_split_that_it_began_with(tmp_path: Path) -> None:
    path = written(tmp_path / "tasks.jsonl", 40)
    record_task_sets(task_sets_of(config(path), tmp_path), tmp_path)
    other = config(path)
    sections = [section.model_copy(update={"held_out": 0.6}) for section in other.environments]
    with pytest.raises(ConfigError, match=r"environment a/b are not .* then, split otherwise into those to"):
        task_sets_of(other.model_copy(update={"environments": sections}), tmp_path)
    without = [other.environments[0].model_copy(update={"tasks": ""}), other.environments[1]]
    with pytest.raises(ConfigError, match=r"environment a/b are not .* 0 of them now, 40 then, another file"):
        task_sets_of(other.model_copy(update={"environments": without}), tmp_path)


def test_a_run_without_task_sets_has_no_record(tmp_path: Path) -> None:
    record_task_sets({}, tmp_path)
    assert not (tmp_path / TASK_SETS).exists()


def test_an_evaluation_needs_tasks_that_are_held_out(tmp_path: Path) -> None:
    path = written(tmp_path / "tasks.jsonl", 1)
    number = next(n for n in range(99) if not _held_out(tmp_path, n))
    path.write_text(json.dumps({"n": number}) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"none of the 1 tasks of a/b is held out for evaluation"):
        task_sets_of(config(path), tmp_path)
    assert task_sets_of(config(path, episodes=0), tmp_path)["a/b"].train == [0]


def _held_out(tmp_path: Path, number: int) -> bool:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"n": number}) + "\n", encoding="utf-8")
    try:
        return not task_sets_of(config(path, episodes=0), tmp_path)["a/b"].train
    except ConfigError:
        return True
