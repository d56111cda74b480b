"""The checks of simulated devices, and the sentence that a run on them is shown with."""

from __future__ import annotations

from pathlib import Path

from earl.config.paced import PACKAGED, pace_of
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.parallelism import REFERENCE, ROLLOUT, TRAINER


def check_paced(config: RunConfig) -> None:
    """Raises ConfigError if the table lacks what the run begins with, or the devices cannot be paced."""
    paced = config.paced
    pace = pace_of(paced)
    if pace is None:
        for key in ("context_scale", "load_scale", "time_scale"):
            if getattr(paced, key) != 1.0:
                raise ConfigError(
                    f"paced.{key} = {getattr(paced, key):g} without paced.table would be used nowhere",
                    "set paced.table, or remove the key",
                )
        return
    if config.rollout.engine != "torch" and pace.paces(ROLLOUT):
        raise ConfigError(
            f'paced.table = {paced.table!r} with rollout.engine = "{config.rollout.engine}", whose steps '
            "EARL does not time",
            'set rollout.engine = "torch", or remove paced.table',
        )
    begins = {ROLLOUT: (config.rollout.tp, 1, 1), TRAINER: config.trainer.parallelism.replica}
    if config.trainer.uses_reference:
        begins[REFERENCE] = (config.reference.tp, 1, 1)
    for stage, replica in begins.items():
        if pace.paces(stage):
            pace.table.check(stage, replica)


def paced_text(config: RunConfig) -> str:
    """A sentence for people that times of the run are simulated, and by which table; "" if they are not.

    It names the stages too while the table is there.
    """
    key = config.paced.table
    if not key:
        return ""
    try:
        pace = config.pace
    except ConfigError:
        pace = None
    stages = " and ".join(pace.table.stages) if pace is not None else "stages"
    return f"SIMULATED TIMES: {stages} on devices paced by {key if key in PACKAGED else Path(key).name}"
