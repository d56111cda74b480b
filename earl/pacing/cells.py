"""The columns that a profile and a pace table have in common: a row's stage, and its parallelism. Pure."""

from __future__ import annotations

from earl.csv_text import Cells, positive
from earl.errors import ConfigError, IllegalParallelism
from earl.parallelism import STAGES, Parallelism

MOST_DEGREE = 1 << 20


def stage_and_layout(cells: Cells, where: str) -> tuple[str, Parallelism]:
    """The stage and the parallelism of a row; an empty degree is 1.

    where: file and line, for errors. Raises ConfigError.
    """
    stage = cells["stage"].lower()
    if stage not in STAGES:
        raise ConfigError(f"{where}: stage is {cells['stage']!r}", f"it is one of {', '.join(STAGES)}")
    degrees = [positive(cells[name] or "1", name, where) for name in ("dp", "tp", "cp", "pp")]
    if any(degree != int(degree) or degree > MOST_DEGREE for degree in degrees):
        raise ConfigError(
            f"{where}: degrees {degrees}", f"give whole numbers dp, tp, cp, pp from 1 to {MOST_DEGREE}"
        )
    try:
        return stage, Parallelism(*map(int, degrees))
    except IllegalParallelism as error:
        raise ConfigError(f"{where}: {error.message}", error.remedy) from None
