"""Task sets: the finite tasks of an environment, split into those to train on and those to evaluate.

A set is a file of rows (JSONL, or Parquet with the extra "parquet"), or a number of seeded instances. A row
is a table that is laid over the run file's `task` and travels in Reset.task_json. A task's number is its
place in the file, from 0, for the whole run. The split follows from a hash of the task's key alone: adding
or reordering rows moves no task from one side to the other, and tasks of one key are on one side.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from earl.config.demonstrations import demonstration
from earl.config.environment import EnvironmentConfig
from earl.errors import ConfigError

# Bytes of one row as JSON, and rows of a set.
ROW_BYTES = 256 << 10
MOST_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class TaskSet:
    """The tasks of one environment. train, held_out: their numbers, ascending; none is in both.

    rows: JSON objects by number; empty for seeded instances. sha256: of the file, "" for
    instances. tasks: how many there are.
    """

    tasks: int
    train: Sequence[int]
    held_out: Sequence[int]
    rows: Sequence[str] = field(default=(), repr=False)
    sha256: str = ""

    @property
    def split(self) -> str:
        """A digest of which tasks are held out."""
        return hashlib.sha256(json.dumps(list(self.held_out)).encode()).hexdigest()[:16]


def task_set_of(section: EnvironmentConfig, label: str) -> TaskSet | None:
    """The set that an environment's section names; None for endless seeds. Raises ConfigError."""
    if section.tasks:
        return _from_file(Path(section.tasks).expanduser(), section, label)
    if section.instances:
        keys = (f"{label}/{number}" for number in range(section.instances))
        train, held_out = split(keys, section.held_out)
        return TaskSet(section.instances, _both(train, held_out, label), held_out)
    return None


def split(keys: Iterable[str], held_out: float) -> tuple[list[int], list[int]]:
    """The numbers of the tasks to train on, and of those to evaluate: a task is held out if the hash of its
    key, as a fraction of all hashes, is below `held_out`."""
    sides: tuple[list[int], list[int]] = ([], [])
    for number, key in enumerate(keys):
        sides[fraction(key) < held_out].append(number)
    return sides


def fraction(key: str) -> float:
    """The hash of a key as a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:7]) / 2**56


def canonical(row: dict[str, Any]) -> str:
    """A row as JSON text that is the same for equal rows."""
    return json.dumps(row, sort_keys=True, separators=(",", ":"), allow_nan=False)


def problem(row: dict[str, Any], demonstration_key: str) -> str:
    """The key of a row's task, where no column tells it: all of the row but how it is solved."""
    return canonical({key: value for key, value in row.items() if key != demonstration_key})


def _from_file(path: Path, section: EnvironmentConfig, label: str) -> TaskSet:
    rows: list[str] = []
    keys: list[str] = []
    shown = section.demonstration_key
    first_places: dict[str, int] = {}
    for number, row in enumerate(_rows(path), 1):
        if number > MOST_ROWS:
            raise ConfigError(f"{path} has more than {MOST_ROWS:,} rows", "split it into several files")
        text = _checked(path, number, row)
        if (earlier := first_places.setdefault(text, number)) != number:
            raise ConfigError(f"{path}: row {number} is row {earlier} once more", "remove one of them")
        if shown:
            _check_demonstration(path, number, row, shown)
        rows.append(json.dumps(row, separators=(",", ":")))
        keys.append(_key(path, number, row, section.task_key) if section.task_key else problem(row, shown))
    if not rows:
        raise ConfigError(f"{path} has no rows", "write a JSON object on each line")
    train, held_out = split(keys, section.held_out)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return TaskSet(len(rows), _both(train, held_out, str(path)), held_out, rows, digest)


def _both(train: list[int], held_out: list[int], what: str) -> list[int]:
    """The tasks to train on. Raises ConfigError if there are none."""
    if not train:
        raise ConfigError(
            f"all {len(held_out)} tasks of {what} are held out for evaluation",
            "lower held_out, or give more tasks",
        )
    return train


def _rows(path: Path) -> Iterator[Any]:
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        with path.open(encoding="utf-8-sig") as lines:
            empty = 0  # the number of the first of empty lines, which may only be the last ones
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    empty = empty or number
                    continue
                if empty:
                    raise ConfigError(f"{path}: row {empty} is empty", "remove the line")
                yield _parsed(path, number, line)
    except FileNotFoundError:
        raise ConfigError(f"tasks = {str(path)!r} does not exist", "give a .jsonl or .parquet file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", "give a .jsonl or .parquet file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "give a file that can be") from None


def _parsed(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line, object_pairs_hook=_no_repeats)
    except RecursionError:
        raise ConfigError(f"{path}: row {number} is nested too deeply", "flatten it") from None
    except ValueError as error:
        raise ConfigError(f"{path}: row {number} is not JSON: {error}", "correct the line") from None


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs of a JSON object as a dict. Raises ValueError for a key that stands in it twice."""
    table = dict(pairs)
    if len(table) != len(pairs):
        key, count = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"{key!r} is a key of one object {count} times")
    return table


def _parquet(path: Path) -> Iterator[Any]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise ConfigError(
            f"tasks = {str(path)!r} needs pyarrow", "pip install 'earl[parquet]', or give a .jsonl file"
        ) from None
    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except ArrowInvalid as error:
        raise ConfigError(f"{path} is not Parquet: {error}", "give a .jsonl or .parquet file") from None


def _checked(path: Path, number: int, row: Any) -> str:
    """The row as canonical JSON. Raises ConfigError unless it is a table of JSON values within ROW_BYTES."""
    if not isinstance(row, dict):
        raise ConfigError(f"{path}: row {number} is no JSON object", 'write it as {"question": "…"}')
    try:
        text = canonical(row)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: row {number} is not JSON: {error}", "use texts and numbers") from None
    if len(text) > ROW_BYTES:
        raise ConfigError(
            f"{path}: row {number} has {len(text):,} bytes, more than {ROW_BYTES:,}", "shorten or remove it"
        )
    return text


def _key(path: Path, number: int, row: dict[str, Any], name: str) -> str:
    if name not in row:
        raise ConfigError(f"{path}: row {number} has no {name!r}, the task_key", "add it to every row")
    value = row[name]
    if value is None:
        raise ConfigError(f"{path}: row {number} has {name} = null, the task_key", "give every row a key")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path}: row {number} has {name} = {value}", "give a text or a number")
    return json.dumps(value, sort_keys=True)


def _check_demonstration(path: Path, number: int, row: dict[str, Any], name: str) -> None:
    """Raises ConfigError unless the row has a conversation to imitate."""
    try:
        demonstration(row.get(name))
    except ValueError as error:
        raise ConfigError(
            f"{path}: row {number} has no conversation as {name!r}, the demonstration_key: {error}",
            'write [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]',
        ) from None


def recorded(sets: dict[str, TaskSet]) -> dict[str, dict[str, Any]]:
    """The part of task sets that a run directory keeps, by label: enough to notice a change."""
    return {
        label: {"tasks": known.tasks, "sha256": known.sha256, "split": known.split}
        for label, known in sets.items()
    }


def check_unchanged(now: dict[str, dict[str, Any]], before: dict[str, dict[str, Any]]) -> None:
    """Raises ConfigError if a task set, or its split, differs from the one that the run began with."""
    for label, known in before.items():
        if now.get(label, {}) == known:
            continue
        tasks = now.get(label, {"tasks": 0, "sha256": ""})
        changes = [f"{tasks['tasks']:,} of them now, {known['tasks']:,} then"]
        if tasks["sha256"] != known["sha256"]:
            changes.append("another file")
        elif tasks["tasks"] == known["tasks"]:
            changes.append("split otherwise into those to train on and those to evaluate")
        raise ConfigError(
            f"the tasks of environment {label} are not those that the run began with: {', '.join(changes)}",
            "restore file, held_out and task_key, or start another run with --name NAME",
        )
