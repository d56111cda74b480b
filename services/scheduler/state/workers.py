"""Workers that take part in a run."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from earl.parallelism import NUMBERED_STAGES
from earl.worker_report import WorkerDevice


class WorkerId(NamedTuple):
    """One life of a worker: its name, and a number that each start of its process draws anew."""

    name: str
    incarnation: int


class WorkerRecord(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """One life of one worker that takes part in the run.

    stage: its number in the contract. parallelism: (dp, tp, cp, pp), and the epoch of the switch that led
    there, 0 as it joined. devices: of each rank, as it reported them first; of free memory they say nothing.
    """

    name: str
    incarnation: int
    stage: int = 0
    address: str = ""
    capacity: int = 0
    parallelism: tuple[int, int, int, int] = (1, 1, 1, 1)
    epoch: int = 0
    devices: tuple[WorkerDevice, ...] = ()
    # Newest policy version it reported; not kept over a restart of the scheduler.
    version: int = 0

    @property
    def id(self) -> WorkerId:
        return WorkerId(self.name, self.incarnation)

    @property
    def stage_name(self) -> str:
        """One of NUMBERED_STAGES, which the contract numbers from 1; "" if the worker is of none."""
        return NUMBERED_STAGES[self.stage - 1] if 1 <= self.stage <= len(NUMBERED_STAGES) else ""


class Incarnations(msgspec.Struct, frozen=True):
    """Incarnations that took part under one worker's name, in the order of their first join."""

    incarnations: tuple[int, ...] = ()
