"""Gives a worker's engines the layout that the plan has for the version that they sample.

    VersionHolder: no episode plays ─► load v ─► bring(v) ─► the plan's layout of v? ─► episodes of v begin
                                                               └─ no: new engines with v, without any KV

Promise: an episode is sampled wholly in its version's layout, whenever it is sampled: one of an older version
that is played again gets the older layout back. The plan and the version alone decide, so whoever starts
again does the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from earl.config.layout_plan import LayoutPlan
from earl.config.scheduler import SwitchConfig
from earl.errors import EngineError, VersionGone
from earl.parallelism import ROLLOUT, Parallelism
from earl.reparallelize import SwitchCommand, ended_switch
from earl.switch_figures import StageSwitch
from services.rollout.pool.pool import EnginePool

log = logging.getLogger(__name__)


class PlannedLayouts:
    """Switches the pool as the plan has it. ended: called with each switch that has ended."""

    def __init__(
        self,
        pool: EnginePool,
        plan: LayoutPlan,
        limits: SwitchConfig,
        ended: Callable[[StageSwitch[Parallelism]], None],
    ) -> None:
        self._pool = pool
        self._plan = plan
        self._limits = limits
        self._ended = ended
        self._epoch = 0

    async def bring(self, version: int, needed: Callable[[], bool]) -> None:
        """Returns when the engines have the version's layout; no turn may run meanwhile.

        needed: whether the trainer still keeps the version. Raises VersionGone if it does not and new engines
        could not read it, EngineError if they do not get it otherwise, and what EnginePool.reparallelize
        raises.
        """
        before, after = self._pool.parallelism, self._plan.layout_at(ROLLOUT, version)
        if before == after:
            return
        self._epoch = max(self._epoch, self._pool.epoch) + 1
        reason = self._plan.reason(ROLLOUT, version)
        tolerance = self._limits.logprob_tolerance
        command = SwitchCommand(self._epoch, after, self._limits, tolerance, reason, time.monotonic())
        outcome = await self._pool.reparallelize(command, needed)
        if outcome.rolled_back and not needed():
            # Nobody's: other workers have played its episodes.
            raise VersionGone(
                f"version {version} is not kept any more: {outcome.message}", "take a newer ticket"
            )
        self._ended(ended_switch(before, command, outcome))
        if outcome.rolled_back:
            raise EngineError(
                f"the engines keep {before}, and the plan has {after} for version {version}: "
                f"{outcome.message}",
                "see the worker's log; change switch.plan if that layout cannot be had here",
            )
        log.info("engines have %s for version %d after %.2f s", after, version, outcome.seconds)
