"""The division of a run's pool of devices between its stages, as each stage begins with it.

    run file ─► a new run begins        devices.json ─► a stage that is started again, a resumed run

The scheduler writes the file after a stage has changed: it tells what a stage had last, and at no time more
devices than the pool has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from earl.config.device_pool import fewest_devices, first_devices
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.run_files import read_object, replace

FILE = "devices.json"


def device_split(config: RunConfig, run_dir: Path) -> dict[str, int]:
    """The devices of each stage, by its name, that a run's stages begin with.

    A stage that the file does not name begins with what the run file gives it. Raises ConfigError for a file
    that tells no division.
    """
    given = first_devices(config)
    path = run_dir / FILE
    if not config.stack.pool_devices or not path.exists():
        return given
    stored = read_object(path)
    try:
        split = {stage: int(stored.get(stage, count)) for stage, count in given.items()}
        whole = all(
            split[stage] > 0 and not split[stage] % few for stage, few in fewest_devices(config).items()
        )
    except (TypeError, ValueError):
        split, whole = given, False
    if not whole or not stored or sum(split.values()) > config.stack.pool_devices:
        raise ConfigError(
            f"{path} holds {json.dumps(stored)}, which is no division of {config.stack.pool_devices} devices",
            "remove the file: the run then begins with the division of its run file",
        )
    return split


def keep_split(run_dir: Path, split: Mapping[str, int]) -> None:
    """Stores the division, whole or not at all. Raises OSError."""
    replace(run_dir / FILE, json.dumps(dict(split)) + "\n")
