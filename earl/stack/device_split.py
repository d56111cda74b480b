"""The division of a run's pool of devices between rollout and trainer, as each stage begins with it.

    run file ─► a new run begins        devices.json ─► a stage that is started again, a resumed run

The scheduler writes the file after a stage has changed: it tells what a stage had last, and at no time more
devices than the pool has.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.run_files import read_object, replace

FILE = "devices.json"


@dataclass(frozen=True, slots=True)
class DeviceSplit:
    """Devices of each of the two stages."""

    rollout: int
    trainer: int

    @property
    def devices(self) -> int:
        return self.rollout + self.trainer


def device_split(config: RunConfig, run_dir: Path) -> DeviceSplit:
    """The division that a run's stages begin with. Raises ConfigError for a file that tells none."""
    given = DeviceSplit(config.rollout.engines * config.rollout.tp, config.trainer.ranks)
    path = run_dir / FILE
    if not config.stack.pool_devices or not path.exists():
        return given
    stored = read_object(path)
    try:
        split = DeviceSplit(int(stored["rollout"]), int(stored["trainer"]))
        whole = split.rollout % config.rollout.tp == 0 and split.rollout > 0 and split.trainer > 0
    except (KeyError, TypeError, ValueError):
        split, whole = given, False
    if not whole or split.devices > config.stack.pool_devices:
        raise ConfigError(
            f"{path} holds {json.dumps(stored)}, which is no division of {config.stack.pool_devices} devices",
            "remove the file: the run then begins with the division of its run file",
        )
    return split


def keep_split(run_dir: Path, split: DeviceSplit) -> None:
    """Stores the division, whole or not at all. Raises OSError."""
    replace(run_dir / FILE, json.dumps(asdict(split)) + "\n")
