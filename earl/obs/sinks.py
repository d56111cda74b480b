"""TensorBoard and Weights & Biases: they follow a run's files, which stay the truth.

    metrics.jsonl ──┐                  ┌─► TensorBoard: event files in <run>/tensorboard
                    ├─► points, new ───┤
    evaluations ────┘    ones alone    └─► W&B: a run of its own, offline in <run>/wandb unless told otherwise

A sink is a process of its own during the run, or `earl sink` afterwards. How far it came is kept in
<run>/sinks/<name>.json: the same command continues from there, and sends nothing twice but what was not
flushed when it was killed. Points are by policy version; after a roll-back a version has a later point,
which counts.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from earl.errors import ConfigError
from earl.obs.metrics import flat
from earl.obs.tail import Tail

NAMES = ("tensorboard", "wandb")
# A server of W&B's that does not answer: well within stack.start_s.
INIT_S = 30.0
# Fields of a record: those that give its time, and those that are no single number.
_WHEN = ("step", "phase", "version", "time_s", "name")
_LEFT_OUT = ("length_histogram.", "rewards", "wins")
# In the state, next to how far each file was read.
_MARKS = "marks"
# Never sent anywhere: a bus's URL may hold a password.
_SECRET_SECTIONS = ("bus",)


@dataclass(frozen=True, slots=True)
class SinkPoint:
    """Numbers of one step or evaluation by name ("train/loss"), at a policy version and a Unix time."""

    version: int
    time_s: float
    values: Mapping[str, float]


class Sink(Protocol):
    """Takes points; raises whatever its library raises."""

    def add(self, point: SinkPoint) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def points(records: list[dict[str, Any]], group: str, began_s: float) -> Iterator[SinkPoint]:
    """The points of lines of metrics.jsonl (group "": named by their phase) or of evaluations.jsonl.

    began_s: the Unix time at which the run began.
    """
    for record in records:
        prefix = group or str(record.get("phase", "step"))
        values = {
            f"{prefix}/{name.replace('.', '/', 1)}": float(value)
            for name, value in flat(record).items()
            if name not in _WHEN and not name.startswith(_LEFT_OUT) and isinstance(value, (int, float))
        }
        yield SinkPoint(int(record.get("version", 0)), began_s + float(record.get("time_s", 0.0)), values)


class Following:
    """Reads what is new in a run's directory for a sink. name: the sink's, under which the place is kept."""

    def __init__(self, directory: Path, name: str) -> None:
        self._state_path = directory / "sinks" / f"{name}.json"
        self._state: dict[str, Any] = _read(self._state_path)
        marks = self._state.get(_MARKS, {})
        # All at once: the last line gives the start of the run.
        self._files = {
            group: Tail(
                directory / f"{stem}.jsonl",
                int(self._state.get(stem, 0)),
                str(marks.get(stem, "")),
                scan_bytes=-1,
            )
            for stem, group in (("metrics", ""), ("evaluations", "evaluation"))
        }

    def new(self) -> list[SinkPoint]:
        """Points since the last call, or since the place that was kept."""
        new_points: list[SinkPoint] = []
        for group, file in self._files.items():
            records = file.read()
            if records:
                # Lines have the run's own seconds; the last one was written when the file last changed.
                began_s = file.path.stat().st_mtime - float(records[-1].get("time_s", 0.0))
                new_points += points(records, group, began_s)
        return new_points

    def keep(self) -> None:
        """Records that everything `new` returned has reached the sink."""
        self._state |= {file.path.stem: file.offset for file in self._files.values()}
        self._state[_MARKS] = {file.path.stem: file.mark for file in self._files.values()}
        self._state_path.parent.mkdir(exist_ok=True)
        scratch = self._state_path.with_suffix(".new")
        scratch.write_text(json.dumps(self._state), encoding="utf-8")
        scratch.replace(self._state_path)

    def run_id(self, make: str) -> str:
        """The id under which the sink continues its run; `make` is taken the first time."""
        return self._state.setdefault("id", make)


def pour(following: Following, sink: Sink) -> int:
    """Gives the sink all new points; returns their number."""
    new_points = following.new()
    for point in new_points:
        sink.add(point)
    if new_points:
        sink.flush()
        following.keep()
    return len(new_points)


def open_sink(name: str, directory: Path, config: Mapping[str, Any], following: Following) -> Sink:
    """The sink of that name. config: the run's, as in JSON.

    Raises ConfigError for an unknown name, or if its extra is not installed.
    """
    opened = {"tensorboard": _tensorboard, "wandb": _wandb}.get(name)
    if opened is None:
        raise ConfigError(f"there is no sink {name!r}", f"give one of {', '.join(NAMES)}")
    try:
        return opened(directory, config, following)
    except ImportError as error:
        raise ConfigError(f"sink {name!r} needs {error.name}", f"pip install 'earl[{name}]'") from error


def _tensorboard(directory: Path, config: Mapping[str, Any], following: Following) -> Sink:
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[attr-defined]
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[attr-defined]
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(directory / "tensorboard"))

    class TensorBoard:
        def add(self, point: SinkPoint) -> None:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in point.values.items()]
            writer.add_event(Event(wall_time=point.time_s, step=point.version, summary=Summary(value=values)))

        def flush(self) -> None:
            writer.flush()

        def close(self) -> None:
            writer.close()

    return TensorBoard()


def _wandb(directory: Path, config: Mapping[str, Any], following: Following) -> Sink:
    import wandb

    shown = {name: value for name, value in config.items() if name not in _SECRET_SECTIONS}
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "earl"),
        name=str(config.get("name", directory.name)),
        id=following.run_id(secrets.token_hex(4)),
        resume="allow",
        dir=str(directory),
        # Without a key it would ask for one.
        mode=_wandb_mode(),
        config=shown,
        settings=wandb.Settings(
            silent=True,
            init_timeout=INIT_S,
            console="off",
            disable_git=True,
            save_code=False,
            disable_code=True,
            x_disable_stats=True,
        ),
    )
    run.define_metric("version")
    run.define_metric("*", step_metric="version")

    class WandB:
        def add(self, point: SinkPoint) -> None:
            run.log({**point.values, "version": point.version, "time_s": point.time_s})

        def flush(self) -> None:
            pass  # its own process writes what it was given

        def close(self) -> None:
            run.finish()

    return WandB()


def _wandb_mode() -> Any:
    if mode := os.environ.get("WANDB_MODE"):
        return mode
    return "online" if os.environ.get("WANDB_API_KEY") else "offline"


def _read(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}
