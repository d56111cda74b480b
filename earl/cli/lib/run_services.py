"""The addresses of a run's services, from its run.json, without the schema of the whole run file.

For commands that look at runs: the schema takes longer to import than all else that `earl status` does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunServices:
    """name: of the run. scheduler, gateway: host:port of its last launch."""

    name: str
    scheduler: str
    gateway: str


def run_json_of(directory: Path) -> bytes:
    """The content of a run's run.json. Raises ConfigError if there is none."""
    try:
        return (directory / "run.json").read_bytes()
    except OSError:
        raise ConfigError(
            f"{directory} is not a run directory: it has no run.json", "give one like runs/demo-seed0"
        ) from None


def services_of(directory: Path) -> RunServices:
    """The services of a run's last launch. Raises ConfigError."""
    try:
        run: Any = json.loads(run_json_of(directory))
    except ValueError:
        raise broken_record(directory) from None
    return RunServices(*(_text(directory, run, key) for key in ("name", "scheduler.bind", "gateway.bind")))


def _text(directory: Path, run: Any, key: str) -> str:
    value = run
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, str):
        raise other_version(directory, f"{key}: text is required")
    return value


def broken_record(directory: Path) -> ConfigError:
    return ConfigError(
        f"{directory / 'run.json'} is broken: it is not JSON", "remove the directory, or restore the file"
    )


def other_version(directory: Path, what: str) -> ConfigError:
    return ConfigError(
        f"{directory} is a run of another version: {what}", "use the version that made the run"
    )
