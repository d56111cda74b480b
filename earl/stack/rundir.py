"""A run's directory: made once, held by one launcher at a time, emptied but for logs if nothing started.

runs/<name>/
  run.toml         the resolved run file: what `earl train ... --resume` reads
  run.json         the same for the services, with the ports of this launch
  logs/            one file per process
  model/           config, tokenizer and initial weights
  checkpoints/     each with its manifest
  valkey/          the embedded Valkey's data: ledger and events
  *.jsonl          metrics, timeline, evaluations
  episodes.jsonl   episodes that the run has recorded (evaluation.record)
  imitated.jsonl   recorded episodes that its warm-up imitates (warmup.episodes)
  audit.jsonl      who did what: docs/security.md
  dashboard.url    a link to its page that works once, while that is served
  failure.json     why the last launch of a run that had begun failed, if it did
  launch.json      the launcher's record of the last launch (earl.stack.record)
  cluster/         of a run on a cluster: its machines' messages to each other (earl.stack.cluster.folder)
  report.html      made at the end
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from earl.config.environment import EnvironmentConfig
from earl.config.paced import absolute_table
from earl.config.run import RunConfig
from earl.config.task_set import TaskSet
from earl.errors import ConfigError, EarlError
from earl.expendable import ExpendableFile
from earl.stack import disk_space
from earl.stack.imitated import imitated_of, keep_imitated
from earl.stack.run_files import CLUSTER, FAILURE, LAUNCH, LOCK, LOGS, replace
from earl.stack.task_sets import record_task_sets, task_sets_of

# A run without a checkpoint needs so much: its model, its ledger, its logs.
LEAST_FREE_BYTES = 64 << 20
# Whoever checks whether a launcher is alive has the lock for an instant.
LOCK_WAIT_S = 0.5
LOCK_POLL_S = 0.02
# What stays when a start failed, and is no run.
KEPT = (LOGS, LOCK, CLUSTER)


class RunDirectory:
    """The directory of one run, held by a lock file for as long as this value is open."""

    def __init__(self, config: RunConfig, *, resume: bool) -> None:
        """Makes or takes the directory. ConfigError: it exists, or does not, or another launcher has it."""
        self.path = run_path(config)
        self._task_sets = check_directory(config, resume=resume)
        self._imitated = imitated_of(config, self.path)
        try:
            (self.path / LOGS).mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"run directory {self.path} cannot be written: {str(error.strerror).lower()}",
                "name a folder that you can write to with --runs-dir",
            ) from None
        free_bytes = shutil.disk_usage(self.path).free
        if free_bytes < LEAST_FREE_BYTES:
            os.close(self._lock)
            if not resume:
                remove_empty(self.path)
            raise ConfigError(
                f"run directory {self.path} has {free_bytes >> 20} MiB of free space, less than "
                f"{LEAST_FREE_BYTES >> 20}",
                "free some space, or name another folder with --runs-dir",
            )
        if not lock(self._lock):
            os.close(self._lock)
            raise ConfigError(
                f"run directory {self.path} is in use by another `earl`",
                f"stop it with: earl stop {self.path}, or choose another --name",
            )
        self.resumed = resume

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        disk_space.give_up(self.path)
        os.close(self._lock)

    @property
    def shown(self) -> str:
        """The run as commands name it: by its name where it is in ./runs, else by its directory."""
        in_runs = self.path.parent.resolve() == Path(RunConfig.model_fields["runs_dir"].default).resolve()
        return self.path.name if in_runs else str(self.path)

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def run_toml(self) -> Path:
        return self.path / "run.toml"

    def log(self, process: str) -> Path:
        return self.path / LOGS / f"{process}.log"

    def write(self, config: RunConfig, launched: RunConfig) -> None:
        """Writes run.toml (as requested, its paths absolute) and run.json (with this launch's ports).

        The record of an earlier launch is removed.
        """
        profile = config.scheduler.profile
        named = str(Path(profile).expanduser().resolve()) if profile else ""
        lasting = config.model_copy(
            update={
                "runs_dir": str(self.path.parent.resolve()),
                "scheduler": config.scheduler.model_copy(update={"profile": named}),
                "paced": absolute_table(config.paced),
                **with_absolute_files(config),
            }
        )
        record_task_sets(self._task_sets, self.path)
        keep_imitated(self._imitated, self.path)
        replace(self.run_toml, to_toml(lasting.model_dump(mode="json")))
        named_files = launched.model_copy(
            update={"paced": absolute_table(launched.paced), **with_absolute_files(launched)}
        )
        replace(self.run_json, named_files.model_dump_json(indent=1))
        for earlier in (FAILURE, LAUNCH):
            (self.path / earlier).unlink(missing_ok=True)
        disk_space.hold(self.path)

    def failed(self, error: EarlError) -> None:
        """Writes why this launch failed after the run had begun; on a full disk it is only logged."""
        disk_space.give_up(self.path)
        fields = {"error": type(error).__name__, "message": error.message, "exit_code": error.exit_code}
        with ExpendableFile(self.path / FAILURE).written():
            replace(self.path / FAILURE, json.dumps(fields) + "\n")

    def clear(self) -> None:
        """Removes everything but the logs after a start that failed, so that the name can be used again."""
        if self.resumed:
            return
        for entry in self.path.iterdir():
            if entry.name not in KEPT:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def check_directory(config: RunConfig, *, resume: bool) -> dict[str, TaskSet]:
    """Returns the run's task sets by the label of their environment.

    Raises ConfigError if the run's directory exists already, or if there is nothing there to resume, and as
    `task_sets_of`.
    """
    path = run_path(config)
    previous = path / "run.json"
    if resume and not previous.is_file():
        raise ConfigError(f"there is no run to resume in {path}", "leave --resume out to start one")
    if not resume and has_run(path):
        raise ConfigError(
            f"run directory {path} exists already",
            f"continue it with: earl resume {path}, or start another with --name NAME",
        )
    if resume:
        check_same_policy(config, RunConfig.model_validate_json(previous.read_text(encoding="utf-8")))
    return task_sets_of(config, path)


def remove_empty(path: Path) -> None:
    """Removes what taking a directory made, if nothing else is in it."""
    if not has_run(path) and not any((path / LOGS).iterdir()):
        shutil.rmtree(path)


def lock(descriptor: int) -> bool:
    """Takes the lock file for this launcher; False if another one has it."""
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(LOCK_POLL_S)


def run_path(config: RunConfig) -> Path:
    return Path(config.runs_dir) / config.name


def has_run(path: Path) -> bool:
    """Returns whether a directory holds more than the logs of starts that failed."""
    return path.is_dir() and any(entry.name not in KEPT for entry in path.iterdir())


def free_name(config: RunConfig, stem: str) -> str:
    """`stem`, or `stem-2`, `stem-3`, ...: the first whose directory holds no run."""
    names = [stem, *(f"{stem}-{number}" for number in range(2, 10_000))]
    return next(name for name in names if not has_run(Path(config.runs_dir) / name))


def check_same_policy(now: RunConfig, before: RunConfig) -> None:
    """A resumed run trains the same model in the same environments, and may have more of those; everything
    else may change."""
    new_names = {entry.label: entry.name for entry in now.mixture}
    if now.environments and not before.environments and now.mixture[0].label != before.mixture[0].label:
        raise ConfigError(
            f"[[environments]] begins with {now.mixture[0].label}, and the run that --resume would continue "
            f"has played {before.mixture[0].label}",
            "write that one first",
        )
    for key, new, old in (
        ("model", now.model, before.model),
        *(
            (_name_key(before, entry.label), new_names.get(entry.label), entry.name)
            for entry in before.mixture
        ),
        ("seed", now.seed, before.seed),
    ):
        if new != old:
            raise ConfigError(
                f"{key} differs from the run that --resume would continue",
                f"resume with {run_path(now)}/run.toml, or start another run with --name NAME",
            )


def _name_key(config: RunConfig, label: str) -> str:
    """The key that names an environment, as an error calls it."""
    return f"the name of environment {label!r}" if config.environments else "environment.name"


def to_toml(table: dict[str, Any], prefix: str = "") -> str:
    """Nested tables of JSON-like values as TOML: a table's own keys first, then its sub-tables and lists of
    tables. A key whose value is None is left out, for TOML has no such value."""
    lines = [
        f"{toml_key(key)} = {toml_inline(value)}"
        for key, value in table.items()
        if value is not None and not isinstance(value, dict) and not is_table_list(value)
    ]
    for key, value in table.items():
        name = f"{prefix}{toml_key(key)}"
        if isinstance(value, dict):
            lines += ["", f"[{name}]", to_toml(value, f"{name}.").rstrip("\n")]
        elif is_table_list(value):
            for inner in value:
                lines += ["", f"[[{name}]]", to_toml(inner, f"{name}.").rstrip("\n")]
    return "\n".join(lines).strip("\n") + "\n"


def with_absolute_files(config: RunConfig) -> dict[str, Any]:
    """The sections of environments and of the warm-up, with absolute paths of their files."""

    def absolute(path: str) -> str:
        return str(Path(path).expanduser().resolve()) if path else ""

    def of_environment(section: EnvironmentConfig) -> EnvironmentConfig:
        return section.model_copy(update={"tasks": absolute(section.tasks)})

    warmup = config.warmup.model_copy(update={"episodes": absolute(config.warmup.episodes)})
    if config.environment is not None:
        return {"warmup": warmup, "environment": of_environment(config.environment)}
    return {"warmup": warmup, "environments": [of_environment(section) for section in config.environments]}


def is_table_list(value: Any) -> bool:
    """Returns whether a value is a list of tables with at least one."""
    return isinstance(value, list) and bool(value) and all(isinstance(inner, dict) for inner in value)


def toml_key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "")
    return key if bare.isascii() and bare.isalnum() else json.dumps(key, ensure_ascii=False)


def toml_inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_key(key)} = {toml_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml_inline(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    # JSON leaves U+007F as it is, and TOML refuses it.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
