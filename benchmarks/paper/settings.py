"""The settings that a user of `earl bench paper` may choose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# MiB a worker at 8K, 16K and 32K tokens in the paper's Fig. 4.
FIG4_MIB = (46.0, 93.0, 187.0)


@dataclass(frozen=True, slots=True)
class PaperSettings:
    """Settings of the figures that have some: of fig4, hosts, the rate of their links, sizes, rounds; of
    fig1, the saved result whose runs are summed up anew, None to make runs."""

    hosts: int = 16
    gbps: float = 0.25
    sizes_mib: tuple[float, ...] = FIG4_MIB
    rounds: int = 3
    runs_of: Path | None = None
