"""The scheduler's loop: the run's phase follows what changed in the ledger, the journal stores it.

    call ─► operation (scheduler) ─► settled: phases.advance ─► journal.durable ─► answer
    tick ─► leases and memberships that end ─┘
    bus ──► WeightsPublished ────────────────┘   (acknowledged once stored)

Promise: nothing is answered that is not stored; a restarted scheduler continues where the stored
ledger ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from earl.bus import Bus
from earl.config.mixture import entry_of
from earl.config.run import RunConfig
from earl.config.task_set import TaskSet
from earl.errors import EpisodesFailing
from earl.fragments.advantages import ADVANTAGES
from earl.fragments.lookup import load_fragment
from earl.parallelism import TRAINER
from earl.rpc.access import OPEN, Access
from earl.stack.ending import ending_reason
from earl.stack.imitated import ImitatedEpisodes, imitated_of
from earl.stack.status import RunStatus
from earl.stack.task_sets import task_sets_of
from earl.waiting import until_first
from services.scheduler.assign.plan import EngineKinds
from services.scheduler.assign.rebalance import Rebalancing
from services.scheduler.batches import consumers
from services.scheduler.batches.columns import ColumnRegistry
from services.scheduler.batches.run_roles import RunRoles
from services.scheduler.files.recorder import RunRecorder
from services.scheduler.files.traces import TicketTraces, tickets_of
from services.scheduler.journal.group_commit import Journal
from services.scheduler.journal.history_writer import history_of
from services.scheduler.journal.redis_store import LedgerStore
from services.scheduler.ledger import phases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.monitor.step_clock import StepClock
from services.scheduler.parallelism.controller import ParallelismController
from services.scheduler.parallelism.device_turns import DeviceTurns
from services.scheduler.parallelism.engine_costs import engine_kinds, rebalancing_of
from services.scheduler.parallelism.turn_driver import TurnDriver
from services.scheduler.parallelism.worker_client import command_turn
from services.scheduler.state.recorded_schedule import RecordedSchedule
from services.scheduler.state.rules import rules_of
from services.scheduler.state.tickets import TicketState
from services.scheduler.wakeup import Wakeup

log = logging.getLogger(__name__)

TICK_S = 0.1
# How often the elapsed time is stored while nothing else is.
CLOCK_S = 5.0
# A worker may take so long to put its engines to sleep, or to wake them and load the newest version; a call
# that takes longer is repeated and waits for the same work.
TURN_CALL_S = 300.0


class RunLoop:
    """One run's loop, and what it works with. Who changes the ledger calls `settled` before it answers."""

    def __init__(
        self, config: RunConfig, run_dir: Path, bus: Bus, store: LedgerStore, ledger: Ledger,
        columns: ColumnRegistry, access: Access, task_sets: Mapping[str, TaskSet],
        imitated: ImitatedEpisodes | None = None, kinds: EngineKinds | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        # The recorded episodes that the warm-up imitates; None if it plays.
        self.recorded: RecordedSchedule | None = None
        if imitated is not None:
            self.recorded = RecordedSchedule(ledger.rules, imitated.by_ticket_label(config))
        # By the label of the environment.
        self.task_sets = task_sets
        self.ledger = ledger
        self.recorder = RunRecorder(config, run_dir, imitated.figures if imitated is not None else {})
        self.step_clock = StepClock()
        self.stop_reason: str | None = None
        self._bus = bus
        self.journal = Journal(ledger.tables, store, history_of(config, run_dir, ledger))
        self.traces = TicketTraces(ledger.tables, tickets_of(config))
        self.parallelism = ParallelismController(
            config,
            run_dir,
            self.recorder.monitor,
            ledger.tables,
            self.recorder.report,
            self.journal.durable,
            access,
        )
        self.turns = TurnDriver(
            DeviceTurns(),
            workers=ledger.tables.workers.values,
            send=lambda command: command_turn(command, access, TURN_CALL_S),
            followed=lambda: self.batches_available.notify(),
        )
        # None unless sequences move between engines.
        self.rebalancing: Rebalancing | None = None
        if kinds is not None:
            self.rebalancing = rebalancing_of(kinds, ledger.tables)
        self.columns = columns
        self.roles = RunRoles(config, ledger, columns)
        # Whether tickets were leased since the last tick.
        self.tickets_taken = False
        self.tickets_available, self.batches_available, self.columns_available = Wakeup(), Wakeup(), Wakeup()
        self._wakeups = self.tickets_available, self.batches_available, self.columns_available
        # Seconds that the run had worked when this process took it over.
        self.opened_s = ledger.tables.run.elapsed_s
        self._began_s = time.monotonic() - self.opened_s
        self._clock_s = 0.0

    @classmethod
    async def open(cls, config: RunConfig, run_dir: Path, bus: Bus, access: Access = OPEN) -> Self:
        """Takes the stored ledger over, or begins one. access: to workers.

        Raises BusUnavailable, and ConfigError for a task set or recorded episodes that cannot be read or have
        changed, and for a fragment that cannot be imported.
        """
        load_fragment("scheduler.advantage", config.scheduler.advantage, ADVANTAGES)
        task_sets = await asyncio.to_thread(task_sets_of, config, run_dir)
        store = LedgerStore(bus)
        records = await store.open()
        columns = ColumnRegistry(config.frozen_stages)
        imitated = await asyncio.to_thread(imitated_of, config, run_dir)
        counts = {label: len(each) for label, each in imitated.usable.items()} if imitated is not None else {}
        rules = rules_of(config, task_sets, counts)
        order = config.scheduler.length_order
        kinds = engine_kinds(config, run_dir) if order != "drawn" else None
        planned = kinds if order == "planned" else None
        ledger = Ledger.restored(rules, records, time.monotonic(), columns.held_back, planned)
        return cls(config, run_dir, bus, store, ledger, columns, access, task_sets, imitated, kinds)

    async def run(self, stop: asyncio.Event) -> None:
        """Works until `stop`. Raises BusUnavailable or LedgerFenced, after which nothing is answered."""
        phases.resume(self.ledger, self.elapsed_s)
        self.settle()
        try:
            await until_first(self.journal.run(), self._work(stop))
            if self.message:
                log.info("the run has ended: %s", self._ending_reason)
        finally:
            self.journal.close()
            self.recorder.close(self.elapsed_s)
            self.parallelism.close()

    # --- state of the run -------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """Seconds that schedulers of this run have worked."""
        return time.monotonic() - self._began_s

    @property
    def done(self) -> bool:
        return phases.phase(self.ledger) == phases.DONE

    @property
    def stopping(self) -> bool:
        """True once no more tickets and batches are handed out."""
        return self.done or self.stop_reason is not None

    @property
    def may_leave(self) -> bool:
        """Nobody needs the workers' memory any more."""
        tables = self.ledger.tables
        return self.stopping and (tables.batch is None or tables.run.trainer not in tables.workers)

    @property
    def message(self) -> str:
        if self.stop_reason is not None and not self.done:
            return self.stop_reason
        return phases.ending_reason(self.ledger) if self.done else ""

    @property
    def _ending_reason(self) -> str:
        """The reason for the end of the run, in the words of every command."""
        step, steps = phases.step(self.ledger)
        status = RunStatus(phase=phases.phase(self.ledger), step=step, steps=steps, message=self.message)
        return ending_reason("complete" if self.done else "stopped", status, {})

    def stop(self, reason: str) -> None:
        """Ends the run at the next boundary; a scheduler started later continues it."""
        if self.stop_reason is None:
            self.stop_reason = reason or "stopped"
        for wakeup in self._wakeups:
            wakeup.notify()

    def drain(self) -> None:
        """Answers waiting calls at once, with nothing, because this process is about to end."""
        for wakeup in self._wakeups:
            wakeup.close()

    # --- turns on shared devices ------------------------------------------------------------

    def give_devices(self, stage: str) -> bool:
        """Makes it a stage's turn on the devices, in a run in which rollout and trainer take turns; returns
        whether the trainer may work, which it always may in other runs."""
        if not self.config.alternates:
            return True
        now = time.monotonic()
        if self.turns.turns.give(stage, time.time_ns()):
            self.ledger.attempts.stand_still(stage == TRAINER, now)
            log.debug("the devices are the %s's", stage)
            self.turns.wake()
        return self.turns.turns.trainer_may_work(self.ledger.tables.workers.values())

    # --- within -----------------------------------------------------------------------------

    async def settled(self) -> None:
        """Carries out what was decided, and returns once it is stored."""
        self.settle()
        await self.journal.durable()

    def settle(self) -> None:
        """Advances the phases after a change, and wakes the waiting calls."""
        if not self.stopping and phases.advance(self.ledger, self.elapsed_s):
            asyncio.get_running_loop().call_soon(self.settle)
        self.step_clock.observe(phases.work(self.ledger), self.elapsed_s)
        consumers.follow(self.columns, self.ledger)
        self.traces.moved()
        self.recorder.monitor.playing(self.ledger.tables.buckets[TicketState.LEASED], time.monotonic())
        if self.stopping:
            self.tickets_available.notify()
        elif self.ledger.tables.pending:
            self.tickets_available.notify_one()
        self.batches_available.notify()
        self.columns_available.notify()

    def store_clock(self) -> None:
        self._clock_s = self.elapsed_s
        self.ledger.record_elapsed(self._clock_s)

    async def _work(self, stop: asyncio.Event) -> None:
        """Works until `stop`, and stores how long."""
        works = [self._tick(), self._follow(), self.parallelism.driver.run(), stop.wait()]
        if self.config.alternates:
            works.append(self.turns.run())
        await until_first(*works)
        self.store_clock()
        await self.journal.durable()

    async def _tick(self) -> None:
        while True:
            self.ledger.expire(time.monotonic())
            self._give_up()
            if self.elapsed_s - self._clock_s > CLOCK_S:
                self.store_clock()
            self.settle()
            if self.ledger.tables.pending and not self.tickets_taken:
                self.tickets_available.notify()  # a call that was woken may have been unable to take them
            self.tickets_taken = False
            await self.journal.durable()
            self.recorder.write(self.ledger, self.elapsed_s, time.monotonic())
            await asyncio.sleep(TICK_S)

    def _give_up(self) -> None:
        """Raises EpisodesFailing once give_up_after tickets in a row have failed."""
        attempts = self.ledger.attempts
        if attempts.given_up >= self.config.scheduler.give_up_after:
            fault = attempts.last_fault or "its lease ended"
            entry = entry_of(self.config.mixture, attempts.last_given_up)
            ended = f"failed {self.config.scheduler.attempts} times each"
            if self.ledger.rules.drops_truncated:
                ended += ", or were truncated"
            raise EpisodesFailing(
                f"{attempts.given_up} tickets of environment {entry.label!r} in a row {ended}; "
                f"the last: {fault}",
                "fix the environment or its task, then continue with --resume",
            )

    async def _follow(self) -> None:
        async for delivery in self._bus.subscribe("scheduler", "scheduler", kinds={"weights_published"}):
            published = delivery.event.weights_published
            self.ledger.published(published.version, published.descriptor_keys)
            await self.settled()
            await delivery.ack()
