"""The last reports of workers: load, gauges, transfers; and the parallelism of the stages.

Telemetry only: no decision of the ledger rests on it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field

from earl.parallelism import Parallelism
from services.scheduler.state.workers import WorkerRecord


@dataclass(frozen=True, slots=True)
class TransferRates:
    """Bytes and time of transfers over one path since counting began.

    seconds: of all reads together, so that bytes a second are what one read gets, not what the run moves.
    retries: requests that were sent again after a connection was lost.
    """

    size_bytes: int = 0
    seconds: float = 0.0
    transfers: int = 0
    retries: int = 0

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second; 0 while nothing was read."""
        return self.size_bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0


@dataclass(slots=True)
class WorkerReport:
    """A worker's last heartbeat. received_s: monotonic.

    train_fraction: the part of the batch that a trainer has trained, as it says; it is none of the gauges.
    """

    incarnation: int
    received_s: float
    running: int = 0
    version: int = 0
    gauges: Mapping[str, float] = field(default_factory=dict)
    train_fraction: float | None = None
    transfers: Mapping[str, TransferRates] = field(default_factory=dict)


class WorkerFleet:
    """Last reports by worker name; transfers of former lives stay counted."""

    def __init__(self) -> None:
        self.reports: dict[str, WorkerReport] = {}
        self._former: dict[str, TransferRates] = {}

    def reported(self, name: str, report: WorkerReport) -> None:
        """Takes a heartbeat."""
        before = self.reports.get(name)
        if before is not None and before.incarnation != report.incarnation:
            self._former = _total([self._former, before.transfers])
        self.reports[name] = report

    def moved(self) -> dict[str, TransferRates]:
        """Returns the reported transfers of all workers of the run, by path."""
        return _total([self._former, *(report.transfers for report in self.reports.values())])


def _total(parts: Iterable[Mapping[str, TransferRates]]) -> dict[str, TransferRates]:
    totals: dict[str, list[tuple[float, ...]]] = {}
    for transfers in parts:
        for path, moved in transfers.items():
            totals.setdefault(path, []).append(astuple(moved))
    return {path: TransferRates(*map(sum, zip(*moved, strict=True))) for path, moved in totals.items()}


def stage_parallelism(workers: Iterable[WorkerRecord]) -> dict[str, Parallelism]:
    """The parallelism of each stage, over the devices of all its workers together.

    A stage whose workers have different replicas has no such answer, and is left out.
    """
    # By stage and by the degrees of one replica: replicas of all its workers.
    replicas: dict[str, Counter[tuple[int, int, int]]] = {}
    for worker in workers:
        if worker.stage_name:
            dp, tp, cp, pp = worker.parallelism
            replicas.setdefault(worker.stage_name, Counter())[tp, cp, pp] += dp
    return {
        stage: Parallelism(dp, *replica)
        for stage, counted in replicas.items()
        if len(counted) == 1
        for replica, dp in counted.items()
    }
