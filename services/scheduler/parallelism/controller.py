"""A run's parallelism: decided after every step, asked for by an operator, needed by a sequence that waits.

committed ─► SelectorLoop ──────────┐                                      ┌─► timeline, switches.jsonl
blocked ───► SelectorLoop.relieve ──┼─► Switching ─► SwitchDriver ─► workers
   └─ no layout of its devices holds it: SplitLoop.relieve ─► DevicePool, or it ends as TRUNCATED
earl parallelism ──► set, move ─────┘       ▲                              └─► what switches cost, what is bad
join, heartbeat ────────────────────────────┘
switch.plan: workers follow it by themselves, heartbeats report their switches ──► timeline, switches.jsonl
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from earl.config.device_pool import most_devices, pooled_stages
from earl.config.layout_plan import KEY, PLANNED_STAGES
from earl.config.run import RunConfig
from earl.errors import EarlError, LedgerError
from earl.parallelism import ROLLOUT, STAGES, Parallelism
from earl.rpc.access import OPEN, Access
from earl.switch_figures import StageSwitch
from services.scheduler.files.metrics_files import RunReport
from services.scheduler.files.traces import record_switch, tickets_of
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.monitor.workload import Monitor, StepFigures
from services.scheduler.parallelism.device_moves import DeviceMoves
from services.scheduler.parallelism.device_pool import DevicePool, LayoutWish
from services.scheduler.parallelism.driver import SwitchDriver
from services.scheduler.parallelism.legal_layouts import LegalLayouts
from services.scheduler.parallelism.planned_switches import PlannedSwitches
from services.scheduler.parallelism.selector_loop import SelectorLoop
from services.scheduler.parallelism.split_loop import SplitLoop
from services.scheduler.parallelism.stage_memory import ReportedDevices
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.parallelism.worker_client import send
from services.scheduler.state.device_move import DeviceMove
from services.scheduler.state.switch_records import By, SwitchEnded, SwitchRecord
from services.scheduler.state.workers import WorkerRecord
from services.scheduler.wakeup import CALL_WAIT_S, Wakeup

log = logging.getLogger(__name__)

# How often a decision is made again for the same sequence that waits.
RELIEVE_S = 30.0


class ParallelismController:
    """Decides and changes the parallelism of a run's stages.

    durable: waits until all that was decided is stored. access: to workers.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        monitor: Monitor,
        tables: LedgerTables,
        report: RunReport,
        durable: Callable[[], Awaitable[None]],
        access: Access = OPEN,
    ) -> None:
        self.switching = Switching(tables, config.switch)
        self.layouts = LegalLayouts(config, directory)
        self._switch_ended = Wakeup()
        stages = pooled_stages(config)
        moves = DeviceMoves(tables, self.switching, config.switch, config.stack.pool_devices, stages)
        most = {stage: most_devices(config, stage) for stage in stages}
        self.pool = DevicePool(
            moves, self.switching, self.layouts, directory, report, self._switch_ended, most
        )
        self._devices = ReportedDevices(tables.workers)
        self.selector = SelectorLoop.open(
            config, directory, monitor, self.switching, self._devices.of, self.pool.is_moving
        )
        self._device_slots = config.rollout.max_sequences / config.rollout.tp
        self.splits: SplitLoop | None = None
        if config.stack.pool_devices and (mode := config.scheduler.selector) != "static":
            self.splits = SplitLoop(
                self.pool,
                directory,
                config.scheduler.switch_cost_s,
                carries_out=mode == "on",
                pinned=self._any_pinned,
                weighed=self.selector.weighed,
                holds=self._holds,
                slots=self._device_slots,
            )
        self._monitor = monitor
        self._tables = tables
        self._report = report
        self._durable = durable
        self._selects = config.selects_layouts
        self._traced = tickets_of(config)
        self._planned = PlannedSwitches(tables, () if config.layout_plan is None else PLANNED_STAGES)
        self._warned: set[tuple[str, str]] = set()
        # The layout in use and the tokens of the sequence that a decision was made for last, and when.
        self._relieved: tuple[Parallelism, float] | None = None
        self._relieved_s = 0.0
        self.driver = SwitchDriver(
            self.switching,
            send=lambda command: send(command, access),
            durable=durable,
            ended=self._ended,
            moves=self.pool.advance,
            traceparent=self._traced.switch,
        )

    def close(self) -> None:
        self.selector.close()
        if self.splits is not None:
            self.splits.close()

    def _holds(self, stage: str, layout: Parallelism, tokens: float) -> bool:
        """Returns whether a layout of a stage holds one sequence of so many tokens, as far as is known."""
        most = self.layouts.holds(stage)(layout)
        return (most is None or tokens <= most) and self.selector.holds(stage, layout, tokens)

    def _any_pinned(self) -> bool:
        return any(self.switching.stage(stage).pinned for stage in self.pool.moves.stages)

    # --- events of the run; now: monotonic seconds ------------------------------------------

    def committed(self, step: int, observed: StepFigures, *, now: float, last: bool) -> None:
        """A training step is done: decides for the next one, and carries it out unless this is the last."""
        self._devices.refresh()

        def divide() -> None:
            if self.splits is not None:
                self.splits.step(step, observed, now=now, last=last)

        self.selector.step(step, observed, now=now, last=last, divide=divide)
        self.driver.wake()

    def heartbeat(
        self,
        worker: WorkerRecord,
        parallelism: Parallelism | None,
        epoch: int,
        gauges: Mapping[str, float],
        *,
        now: float,
        switches: Sequence[StageSwitch[Parallelism]] = (),
    ) -> float:
        """Takes a worker's report: its parallelism, None if not reported, and the epoch that led there.

        switches: that it made by itself since its report before. Returns the tokens of a sequence that waits
        there and that no division of the run's pool holds; 0 if all that wait may go on waiting.
        """
        planned = [self._planned.reported(worker, switch) for switch in switches]
        self._ended([fact for fact in planned if fact is not None])
        self.switching.reported(worker, parallelism, epoch)
        blocked = gauges.get("blocked_context_tokens", 0.0)
        if blocked > 0 and worker.stage_name == ROLLOUT:
            may_wait = self._blocked(parallelism or Parallelism(*worker.parallelism), blocked, now)
            return 0.0 if may_wait else blocked
        return 0.0

    def _blocked(self, parallelism: Parallelism, tokens: float, now: float) -> bool:
        """A sequence waits because no engine of a worker can hold it; returns whether it may go on waiting.
        Where the run has no pool, the worker itself knows what its devices hold."""
        self.selector.block(parallelism, tokens)
        if not self._selects or self.switching.stage(ROLLOUT).switch is not None:
            return True
        running = self.switching.running(ROLLOUT)
        if running is None or running.replica != parallelism.replica or self.pool.is_moving(ROLLOUT):
            return True  # reported before the switch that ended just now, or devices are on their way
        if self.switching.stage(ROLLOUT).pinned:
            cause = f"waits in {running}: the stage is pinned"
            self._warn(ROLLOUT, cause, f"a sequence of {tokens:,.0f} tokens {cause}")
            return True
        if self._relieved == (running, tokens) and now - self._relieved_s < RELIEVE_S:
            return True
        self._relieved, self._relieved_s = (running, tokens), now
        self._devices.refresh()
        observed = self._monitor.glance(self._tables.workers.values(), self._device_slots)
        holds = None if observed is None else self.selector.relieve(observed, now=now)
        if holds is None:
            holds = self._relieve(running, tokens, now)
        may_wait = holds or self.splits is None or self.splits.relieve(tokens, now=now)
        if not may_wait:
            self._relieved = None
            cause = "ends as TRUNCATED: no division of the pool holds it"
            self._warn(ROLLOUT, cause, f"a sequence of {tokens:,.0f} tokens {cause}")
        self.driver.wake()
        return may_wait

    def _relieve(self, running: Parallelism, tokens: float, now: float) -> bool:
        """Asks, where there is no profile, for the next larger replica that is not known to be too small;
        returns whether there is one."""
        barred, holds = self.switching.barred(ROLLOUT, now), self.layouts.holds(ROLLOUT)
        larger = [
            layout
            for layout in self.layouts.legal(ROLLOUT, self.switching.devices(ROLLOUT))
            if layout.tp * layout.cp > running.tp * running.cp
            and layout.replica not in barred
            and (holds(layout) or tokens) >= tokens
        ]
        if not larger:
            cause = f"waits in {running}: no other layout that may be tried is known to hold it"
            self._warn(ROLLOUT, cause, f"a sequence of {tokens:,.0f} tokens {cause}")
            return False
        reason = (
            f"goes to {larger[0]} at once: no engine of {running} holds a sequence of {tokens:,.0f} tokens"
        )
        try:
            self.switching.ask(ROLLOUT, larger[0].replica, by=By.SELECTOR, reason=reason, now=now)
        except EarlError as error:
            self._warn(ROLLOUT, str(error), str(error))
        return True

    # --- an operator's request --------------------------------------------------------------

    async def set(
        self, stage: str, request: tuple[int, Parallelism] | None, pin: bool, wait_s: float
    ) -> tuple[int, SwitchRecord | None]:
        """Changes a stage's parallelism, pins or unpins it, and waits for the switch: (its epoch, its end).

        request: (dp, or 0 for whatever the devices give; one replica); None changes only the pin. The epoch
        is that of the last switch if there was nothing to do; the end is None if the switch is still running
        after wait_s. Raises IllegalParallelism and LedgerError, having changed nothing.
        """
        if stage in self._planned.stages:
            raise LedgerError(
                f"the plan of this run says when {stage} changes its parallelism ({KEY})",
                f"stop the run, and resume it with another plan: --{KEY} '[...]'",
            )
        devices = self.switching.devices(stage)
        if not devices:
            here = [name for name in STAGES if self.switching.devices(name)]
            raise LedgerError(
                f"no worker of stage {stage} takes part in the run",
                f"it has {', '.join(here)}" if here else "wait until its workers have joined",
            )
        switch = None
        if request is not None:
            dp, replica = request
            self.layouts.check(stage, devices, dp, replica)
            reason = "an operator asked for it"
            switch = self.switching.ask(
                stage, replica.replica, by=By.OPERATOR, reason=reason, now=time.monotonic()
            )
        self.switching.pin(stage, pin)
        self.driver.wake()
        await self._durable()
        if switch is None:
            last = self.switching.stage(stage).last
            return (last.epoch if last is not None else 0), None
        until = time.monotonic() + min(wait_s, CALL_WAIT_S)
        while (left_s := until - time.monotonic()) > 0 and self._is_running(stage, switch.epoch):
            await self._switch_ended.wait(left_s)
        last = self.switching.stage(stage).last
        return switch.epoch, last if last is not None and last.epoch == switch.epoch else None

    async def move(
        self, giver: str, taker: str, devices: int, layouts: Mapping[str, LayoutWish], wait_s: float
    ) -> DeviceMove | None:
        """Moves devices from one stage to another, and waits: the last move, in progress if it has not ended
        after wait_s. layouts: of giver and taker afterwards; a stage that is not named keeps its replicas.
        Raises IllegalParallelism and LedgerError, having changed nothing."""
        after = self.pool.after(giver, taker, devices)
        move = self.pool.ask(after, layouts=layouts, now=time.monotonic())
        self.driver.wake()
        await self._durable()
        if move is None:
            return self.pool.moves.move
        until = time.monotonic() + min(wait_s, CALL_WAIT_S)
        while (left_s := until - time.monotonic()) > 0 and self.pool.is_running(move.number):
            await self._switch_ended.wait(left_s)
        return self.pool.moves.move

    def _is_running(self, stage: str, epoch: int) -> bool:
        switch = self.switching.stage(stage).switch
        return switch is not None and switch.epoch == epoch

    # --- ended switches ---------------------------------------------------------------------

    def _ended(self, ended: Sequence[SwitchEnded]) -> None:
        for fact in ended:
            stage, switch = fact.stage, fact.switch
            now_ns = time.time_ns()
            self._report.switched(stage, switch, now_ns)
            record_switch(self._traced, stage, switch, now_ns)
            if switch.rolled_back:
                text = f"did not get {switch.target}: {switch.message}"
                self._warn(stage, text, text)
                continue
            log.info(
                "%s has %s after %.2f s, of which it stood still for %.2f s (epoch %d: %s)",
                stage, switch.target, switch.seconds, switch.stall_s, switch.epoch, switch.reason,
            )  # fmt: skip
        if ended:
            self._switch_ended.notify()

    def _warn(self, stage: str, cause: str, text: str) -> None:
        """Logs a warning, once for each cause. cause: without figures that grow, so that there are few."""
        if (stage, cause) not in self._warned:
            self._warned.add((stage, cause))
            log.warning("%s: %s", stage, text)
