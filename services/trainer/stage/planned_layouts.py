"""Brings the trainer's ranks to the layout that the plan has for the version that they are about to train.

    version v ─► the plan's layout of v? ── yes ─► ask for a batch
                   └─ no: SWITCH, the same v ─► again

Promise: no batch is asked for in another layout than its version's. The plan and the version alone decide: a
trainer that goes back to an older checkpoint trains on in the layout of then.
"""

from __future__ import annotations

from earl.config.layout_plan import LayoutPlan
from earl.config.scheduler import SwitchConfig
from earl.errors import TrainerError
from earl.parallelism import TRAINER, Parallelism
from services.trainer.stage.stage_rank0 import StageRank0


class PlannedTrainerLayouts:
    """The planned switches of a trainer; on rank 0."""

    def __init__(self, stage: StageRank0, plan: LayoutPlan, limits: SwitchConfig) -> None:
        self._stage = stage
        self._plan = plan
        self._limits = limits
        # What was requested last.
        self._requested: Parallelism | None = None

    def due(self, version: int) -> bytes:
        """The command of the switch that the version needs first, b"" if it needs none.

        Raises TrainerError if the last one failed.
        """
        layout = self._plan.layout_at(TRAINER, version)
        if self._stage.parallelism == layout:
            self._requested = None
            return b""
        if self._requested == layout:
            raise TrainerError(
                f"the ranks keep {self._stage.parallelism}, and the plan has {layout} for version {version}",
                "the log has the reason; change switch.plan if that layout cannot be had here",
            )
        self._requested = layout
        self._stage.command_switch(layout, self._limits, self._plan.reason(TRAINER, version))
        return self._stage.next_switch()
