"""The switches that workers of a stage make by themselves, as the run's plan has them. Pure.

    heartbeat with a switch ─► reported before? ── no ─► the stage's last switch, and a fact of the run

A worker reports a switch until a heartbeat of its is answered, so the same one may come twice.
"""

from __future__ import annotations

from collections.abc import Collection

from earl.parallelism import Parallelism
from earl.switch_figures import StageSwitch
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state.switch_records import SwitchEnded, SwitchRecord
from services.scheduler.state.workers import WorkerId, WorkerRecord


class PlannedSwitches:
    """Records what the workers of `stages` report; these stages are commanded nothing.

    What was begun, pinned or chosen for them before the run had its plan is given up: no worker of theirs is
    brought to the layout of the others.
    """

    def __init__(self, tables: LedgerTables, stages: Collection[str]) -> None:
        self.stages = tuple(stages)
        self._tables = tables
        # By worker: the epoch of the last switch that it reported.
        self._reported: dict[WorkerId, int] = {}
        for stage in self.stages:
            if tables.stages.get(stage) is not None:
                tables.change_stage(stage, replica=None, pinned=False, switch=None)

    def reported(self, worker: WorkerRecord, switch: StageSwitch[Parallelism]) -> SwitchEnded | None:
        """Takes the report of a switch that has ended; None if it was reported before."""
        if switch.epoch <= self._reported.get(worker.id, 0):
            return None
        self._reported[worker.id] = switch.epoch
        ended = SwitchEnded(worker.stage_name, SwitchRecord.planned(switch))
        self._tables.change_stage(ended.stage, last=ended.switch)
        self._tables.record_fact(ended)
        return ended
