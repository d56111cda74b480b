"""`[paced]`: devices that are simulated, and their table."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import Field

from earl import pacing
from earl.config.base import ConfigSection
from earl.errors import ConfigError
from earl.pacing.pace import Pace, PaceScale
from earl.pacing.table import PaceTable

PACKAGED = ("fig3", "slow-link", "compute-bound", "long-wide")
_TABLES = Path(pacing.__file__).parent / "tables"


class PacedConfig(ConfigSection):
    """Simulated devices: each step is computed for real, then waits until its time by a table is over.

    The run's times are then those of the table's devices, not of this machine (docs/paced.md).
    """

    # The table that paces the devices: "fig3" (the paper's), "slow-link", "compute-bound" or "long-wide"
    # (EARL's own), or a CSV file with the columns of a profile. Empty: devices are real. Stages without rows
    # run at the machine's own speed.
    #
    # Set it to try layouts of devices that you do not have; every time and rate of the run is then simulated.
    table: str = ""
    # Tokens of the table that one token of the run stands for.
    #
    # Raise it for a table of long contexts, so that the run's own stay short enough to be computed here.
    context_scale: float = Field(default=1.0, gt=0)
    # Sequences of the table that one sequence of the run stands for.
    #
    # Raise it for a table of high loads.
    load_scale: float = Field(default=1.0, gt=0)
    # Seconds of the run for one second of the table.
    #
    # Raise it if status says that steps are over pace: this machine then computes them too slowly.
    time_scale: float = Field(default=1.0, gt=0)


def pace_of(paced: PacedConfig) -> Pace | None:
    """The pace of a run's devices; None if they are real. Raises ConfigError for a table that is unusable."""
    if not paced.table:
        return None
    return Pace(_table(paced.table), PaceScale(paced.context_scale, paced.load_scale, paced.time_scale))


@lru_cache(maxsize=8)
def _table(key: str) -> PaceTable:
    path = _TABLES / f"{key}.csv" if key in PACKAGED else Path(key).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = str(error.strerror).lower() if isinstance(error, OSError) else "it is not UTF-8 text"
        names = " or ".join(f'"{name}"' for name in PACKAGED)
        raise ConfigError(
            f"paced.table = {key!r} cannot be read: {reason}",
            f"give {names}, a CSV file with the columns of a profile, or remove the key",
        ) from None
    return PaceTable.parse(text, key if key in PACKAGED else path.name)


def absolute_table(paced: PacedConfig) -> PacedConfig:
    """The same keys, with the path of a table's file made absolute."""
    if not paced.table or paced.table in PACKAGED:
        return paced
    return paced.model_copy(update={"table": str(Path(paced.table).expanduser().resolve())})
