"""The division of a run's pool of devices between its stages, as each stage begins with it.

    run file ─► a new run begins        devices.json ─► a stage that is started again, a resumed run

The scheduler writes the file after a stage has changed: it tells what a stage had last, devices and replicas,
and at no time more devices than the pool has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from earl.config.device_pool import first_layouts
from earl.config.run import RunConfig
from earl.errors import ConfigError, IllegalParallelism
from earl.parallelism import Parallelism, Replica
from earl.stack.run_files import read_object, replace

FILE = "devices.json"
# The key of the replicas that are not the run file's.
REPLICAS = "replicas"


def device_split(config: RunConfig, run_dir: Path) -> dict[str, Parallelism]:
    """The parallelism of each stage, by its name, that a run's stages begin with.

    A stage that the file does not name begins with what the run file gives it. Raises ConfigError for a file
    that tells no division.
    """
    given = first_layouts(config)
    path = run_dir / FILE
    if not config.stack.pool_devices or not path.exists():
        return given
    stored = read_object(path)
    try:
        replicas = {stage: Parallelism.parse(text) for stage, text in stored.get(REPLICAS, {}).items()}
        split = {
            stage: replicas.get(stage, first).over(int(stored.get(stage, first.devices)))
            for stage, first in given.items()
        }
    except (AttributeError, TypeError, ValueError, IllegalParallelism):
        split = {}
    whole = {stage: layout for stage, layout in split.items() if layout is not None}
    devices = sum(layout.devices for layout in whole.values())
    if not stored or whole.keys() != given.keys() or devices > config.stack.pool_devices:
        raise ConfigError(
            f"{path} holds {json.dumps(stored)}, which is no division of {config.stack.pool_devices} devices",
            "remove the file: the run then begins with the division of its run file",
        )
    return whole


def keep_split(run_dir: Path, split: Mapping[str, int], replicas: Mapping[str, Replica]) -> None:
    """Stores the division, whole or not at all. replicas: of the stages, where they are known.

    Raises OSError.
    """
    named = {stage: str(Parallelism(1, *replica)) for stage, replica in replicas.items()}
    replace(run_dir / FILE, json.dumps(dict(split) | ({REPLICAS: named} if named else {})) + "\n")
