"""A run's parallelism: decided after every step, asked for by an operator, needed by a sequence that waits.

committed ─► Selection ─► Helm ──┐                                     ┌─► timeline, switches.jsonl
blocked ───► Selection.relieve ──┼─► Switching ─► Driver ─► workers ───┤
earl parallelism ──► set ────────┘       ▲                             └─► what switches cost, what is bad
join, heartbeat ─────────────────────────┘
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

from earl.config.run import RunConfig
from earl.errors import EarlError, LedgerError
from earl.parallelism import Parallelism
from earl.rpc.access import OPEN, Access
from services.scheduler.files.metrics_files import RunReport
from services.scheduler.files.traces import record_switch, tickets_of
from services.scheduler.ledger.index import Book
from services.scheduler.monitor.workers import STAGES
from services.scheduler.monitor.workload import ROLLOUT, Monitor, Step
from services.scheduler.parallelism.actions import Helm
from services.scheduler.parallelism.driver import SwitchDriver
from services.scheduler.parallelism.legal_layouts import Layouts
from services.scheduler.parallelism.selector_loop import Selection
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.parallelism.worker_client import send
from services.scheduler.state.records import Member
from services.scheduler.state.switch_records import By, Replica, SwitchEnded, SwitchRecord
from services.scheduler.wakeup import Bell

log = logging.getLogger(__name__)

# Longest wait within one call, and how often a sequence that waits is looked after anew.
WAIT_S = 20.0
LOOK_S = 30.0


class Steering:
    """Of one run. durable: waits until all that was decided is stored."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        monitor: Monitor,
        book: Book,
        report: RunReport,
        durable: Callable[[], Awaitable[None]],
        access: Access = OPEN,
    ) -> None:
        self.switching = Switching(book, config.switch)
        self.layouts = Layouts(config, directory)
        self.selection = Selection.open(config, directory, monitor, self.layouts, Helm(self.switching))
        self._monitor = monitor
        self._book = book
        self._report = report
        self._durable = durable
        self._steers = config.scheduler.selector == "on"
        self._device_slots = config.rollout.max_sequences / config.rollout.tp
        self._traced = tickets_of(config)
        self._over = Bell()
        self._said: set[tuple[str, str]] = set()
        # (cut, tokens) of the sequence that was looked after last, and when.
        self._looked: tuple[Replica, float] | None = None
        self._looked_s = 0.0
        self.driver = SwitchDriver(
            self.switching,
            send=lambda command: send(command, access),
            durable=durable,
            ended=self._ended,
            traceparent=self._traced.switch,
        )

    def close(self) -> None:
        self.selection.close()

    # --- what happens in the run ------------------------------------------------------------

    def committed(self, step: int, seen: Step, *, goes_on: bool) -> None:
        """A training step is done: decides for the next one, and carries it out if there is to be one."""
        self.selection.step(step, seen, goes_on=goes_on)
        self.driver.wake()

    def heard(self, member: Member, cut: Parallelism | None, epoch: int, gauges: Mapping[str, float]) -> None:
        """A heartbeat."""
        self.switching.reported(member, cut, epoch)
        blocked = gauges.get("blocked_context_tokens", 0.0)
        if blocked > 0 and STAGES.get(member.stage) == ROLLOUT:
            self._blocked(cut or Parallelism(*member.parallelism), blocked)

    def _blocked(self, cut: Parallelism, tokens: float) -> None:
        """A sequence waits because no engine that is cut so can hold it."""
        now = time.monotonic()
        self.selection.block(cut, tokens)
        if not self._steers or self.switching.stage(ROLLOUT).switch is not None:
            return
        running = self.switching.running(ROLLOUT)
        if running is None or running.replica != cut.replica:
            return  # of before the switch that ended just now
        if self.switching.stage(ROLLOUT).pinned:
            self._say(ROLLOUT, f"a sequence of {tokens:,.0f} tokens waits in {running}: the stage is pinned")
            return
        if self._looked == (cut.replica, tokens) and now - self._looked_s < LOOK_S:
            return
        self._looked, self._looked_s = (cut.replica, tokens), now
        seen = self._monitor.glance(self._members(), self._device_slots)
        if seen is None or not self.selection.relieve(seen):
            self._relieve(running, tokens, now)
        self.driver.wake()

    def _relieve(self, running: Parallelism, tokens: float, now: float) -> None:
        """Without a profile: the next larger cut that is not known to be too small."""
        barred, holds = self.switching.barred(ROLLOUT, now), self.layouts.holds(ROLLOUT)
        larger = [
            one
            for one in self.layouts.legal(ROLLOUT, self.switching.devices(ROLLOUT))
            if one.tp * one.cp > running.tp * running.cp
            and one.replica not in barred
            and (holds(one) or tokens) >= tokens
        ]
        if not larger:
            what = f"a sequence of {tokens:,.0f} tokens waits in {running}"
            self._say(ROLLOUT, f"{what}: no other layout that may be tried is known to hold it")
            return
        reason = (
            f"goes to {larger[0]} at once: no engine of {running} holds a sequence of {tokens:,.0f} tokens"
        )
        try:
            self.switching.ask(ROLLOUT, larger[0].replica, by=By.SELECTOR, reason=reason, now=now)
        except EarlError as error:
            self._say(ROLLOUT, str(error))

    def _members(self) -> Collection[Member]:
        return self._book.members.values()

    # --- what an operator asks for ----------------------------------------------------------

    async def set(
        self, stage: str, asked: tuple[int, Parallelism] | None, pin: bool, wait_s: float
    ) -> tuple[int, SwitchRecord | None]:
        """Cuts a stage so, pins or unpins it, and waits for the switch: (its epoch, how it ended).

        asked: (dp, 0 for whatever the devices give; one replica); None leaves it as it is. The epoch is of
        the last switch if there was nothing to do. Raises IllegalParallelism and LedgerError, having
        changed nothing.
        """
        devices = self.switching.devices(stage)
        if not devices:
            here = [name for name in STAGES.values() if self.switching.devices(name)]
            raise LedgerError(
                f"no worker of stage {stage} takes part in the run",
                f"it has {', '.join(here)}" if here else "wait until its workers have joined",
            )
        switch = None
        if asked is not None:
            dp, one = asked
            self.layouts.check(stage, devices, dp, one)
            reason = "an operator asked for it"
            switch = self.switching.ask(
                stage, one.replica, by=By.OPERATOR, reason=reason, now=time.monotonic()
            )
        self.switching.pin(stage, pin)
        self.driver.wake()
        await self._durable()
        if switch is None:
            last = self.switching.stage(stage).last
            return (last.epoch if last is not None else 0), None
        until = time.monotonic() + min(wait_s, WAIT_S)
        while (left_s := until - time.monotonic()) > 0 and self._runs(stage, switch.epoch):
            await self._over.wait(left_s)
        last = self.switching.stage(stage).last
        return switch.epoch, last if last is not None and last.epoch == switch.epoch else None

    def _runs(self, stage: str, epoch: int) -> bool:
        switch = self.switching.stage(stage).switch
        return switch is not None and switch.epoch == epoch

    # --- what came of it --------------------------------------------------------------------

    def _ended(self, ended: Sequence[SwitchEnded]) -> None:
        for one in ended:
            switch = one.switch
            now_ns = time.time_ns()
            self._report.switched(one.stage, switch, now_ns)
            record_switch(self._traced, one.stage, switch, now_ns)
            if not switch.rolled_back:
                log.info(
                    "%s was cut into %s in %.2f s, and stood still for %.2f s of them (epoch %d: %s)",
                    one.stage, switch.target, switch.seconds, switch.stall_s, switch.epoch, switch.reason,
                )  # fmt: skip
                continue
            self._say(one.stage, f"not cut into {switch.target}: {switch.message}")
        if ended:
            self._over.ring()

    def _say(self, stage: str, text: str) -> None:
        """A warning, once."""
        if (stage, text) not in self._said:
            self._said.add((stage, text))
            log.warning("%s: %s", stage, text)
