"""The facts that the ledger publishes on the run's bus."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.switch_records import SwitchEnded
from services.scheduler.state.tickets import EpisodeResult, Purpose
from services.scheduler.state.workers import WorkerRecord


class TrajectoryReady(msgspec.Struct, frozen=True, gc=False):
    """An attempt was accepted. environment, task, env_seed, seat: of its ticket."""

    ticket_id: int
    attempt: int
    worker: str
    purpose: Purpose
    result: EpisodeResult
    environment: str = ""
    task: int = -1
    env_seed: int = 0
    seat: int = 0


@dataclass(frozen=True, slots=True)
class BatchPlanned:
    batch_id: int
    version: int
    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    batch_id: int
    version: int
    descriptor_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvaluationDone:
    """An evaluation is over. baseline: the run's first evaluation, None if this is the one."""

    evaluation: EvaluationRecord
    baseline: EvaluationRecord | None = None


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    worker: WorkerRecord


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    worker: WorkerRecord
    reason: str


Fact = (
    TrajectoryReady | BatchPlanned | BatchCommitted | EvaluationDone | WorkerJoined | WorkerLeft | SwitchEnded
)
