"""The last reports of workers: load, gauges, transfers; and the parallelism of the stages.

Telemetry only: no decision of the ledger rests on it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from earl.parallelism import Parallelism
from earl.worker_report import TransferTotals, WorkerDevice, totals_by_path
from services.scheduler.state.workers import WorkerRecord


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
    transfers: Sequence[TransferTotals] = ()
    devices: Sequence[WorkerDevice] = ()


class WorkerFleet:
    """Last reports by worker name; transfers of former lives stay counted."""

    def __init__(self) -> None:
        self.reports: dict[str, WorkerReport] = {}
        self._former: list[TransferTotals] = []

    def reported(self, name: str, report: WorkerReport) -> None:
        """Takes a heartbeat."""
        before = self.reports.get(name)
        if before is not None and before.incarnation != report.incarnation:
            self._former = totals_by_path([*self._former, *before.transfers])
        self.reports[name] = report

    def moved(self) -> list[TransferTotals]:
        """Returns the reported transfers of all workers of the run, by path."""
        reported = (total for report in self.reports.values() for total in report.transfers)
        return totals_by_path([*self._former, *reported])


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
