"""The parallelism that every stage should have, and the workers that get commands. Pure.

    ask ─► switch ─► commands ─► outcomes ─► all have done it ─────────────► the stage has its target
                        ▲            └─ one failed, refused, was lost ─────► the stage has what it had before
    join, heartbeat ────┴── workers that differ from their stage get commands (By.REALIGN), also back

Promise: one switch a stage at a time, each with an epoch that no other ever has; a command is sent until it
is answered, its worker is gone or its deadline has passed, so that lost ones, repeated ones and restarts of
either side need no case of their own. Whatever happens, all workers of a stage end with the same parallelism,
as far as they obey.

Time is an argument (monotonic seconds). All but clocks is in the tables, stored before any answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from earl.config.scheduler import SwitchConfig
from earl.errors import IllegalParallelism, LedgerError
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchCommand, SwitchOutcome
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.parallelism.worker_layouts import (
    commonest,
    name_of,
    parallelism_of,
    spread_over,
    together,
)
from services.scheduler.state.switch_records import (
    By,
    Replica,
    StageRecord,
    SwitchEnded,
    SwitchRecord,
    WorkerCommand,
)
from services.scheduler.state.workers import WorkerRecord

# Switches whose cost is remembered.
COSTS = 8
# Longest pause between two corrections of a worker, in retry_s. The first is one retry_s, each next twice the
# one before.
LONGEST_PAUSE = 8
MESSAGES = 4


class Switching:
    """The switches of the stages of the tables.

    limits: deadlines of a switch, after which a worker without an answer has failed; for how long what failed
    is not tried again; and the difference of log-probs beyond which a replica is not used again in the run.
    """

    def __init__(self, tables: LedgerTables, limits: SwitchConfig) -> None:
        self._tables = tables
        self._limits = limits
        # By stage: when its switch began, or this process if that was later.
        self._began_s: dict[str, float] = {}
        # By stage: workers, with their incarnations, that failed in its switch.
        self._tried: dict[str, set[tuple[str, int]]] = {}
        # (stage, replica's name): (until when it is not to be chosen, the reason).
        self._avoided: dict[tuple[str, str], tuple[float, str]] = {}
        # By worker: (until when it is not corrected, the length of that pause).
        self._paused: dict[str, tuple[float, float]] = {}

    # --- state ------------------------------------------------------------------------------

    def stage(self, stage: str) -> StageRecord:
        """Returns a stage's stored record."""
        return self._tables.stages.get(stage) or StageRecord()

    def devices(self, stage: str) -> list[int]:
        """The number of devices of each worker of the stage."""
        return [parallelism_of(worker).devices for worker in self._workers(stage).values()]

    def running(self, stage: str) -> Parallelism | None:
        """The parallelism of all the stage's workers together; None if there are none, or they differ."""
        present = [parallelism_of(worker) for worker in self._workers(stage).values()]
        if len({parallelism.replica for parallelism in present}) != 1:
            return None
        return together(present)

    def target(self, stage: str) -> Parallelism | None:
        """Returns the stage's parallelism after its switch; None where its workers keep differing."""
        record = self.stage(stage)
        if record.switch is None:
            return self.running(stage)
        back = record.switch.rolled_back or record.switch.by is By.REALIGN
        if record.switch.resizes and not back:
            return record.switch.target
        replica = record.replica if back else record.switch.target.replica
        if replica is None:
            return None
        return Parallelism(1, *replica).over(sum(self.devices(stage)))

    def cost_s(self, stage: str) -> float | None:
        """Seconds of work that a switch of the stage costs, as measured; None before the first."""
        costs_s = self.stage(stage).costs_s
        return median(costs_s) if costs_s else None

    def barred(self, stage: str, now: float) -> Mapping[Replica, str]:
        """Replicas that are not to be chosen now, with the reason for each."""
        barred = {Parallelism.parse(name).replica: reason for name, reason in self.stage(stage).bad.items()}
        for (other, name), (until, reason) in self._avoided.items():
            if other == stage and now < until:
                barred.setdefault(Parallelism.parse(name).replica, reason)
        return barred

    # --- requests ---------------------------------------------------------------------------

    def ask(
        self, stage: str, replica: Replica, *, by: By, reason: str, now: float, step: int = 0
    ) -> SwitchRecord | None:
        """Begins a switch of all the stage's workers; None if they have such replicas already.

        Raises LedgerError (no worker, another switch in progress, a bad replica) and IllegalParallelism.
        """
        workers = self._workers(stage)
        if not workers:
            raise LedgerError(f"no worker of stage {stage} takes part in the run", "wait until one joined")
        record = self.stage(stage)
        if record.switch is not None:
            raise LedgerError(
                f"{stage} is switching from {record.switch.former} to {record.switch.target}",
                "wait until that has ended: earl parallelism",
            )
        if (name := name_of(replica)) in record.bad:
            raise LedgerError(f"{name} is not used in this run again: {record.bad[name]}", "choose another")
        before = {name: parallelism_of(worker) for name, worker in workers.items()}
        after = spread_over(before, replica)
        if all(parallelism.replica == replica for parallelism in before.values()):
            self._tables.change_stage(stage, replica=replica)
            return None
        former = self.running(stage) or Parallelism(1, *(record.replica or commonest(before.values())))
        self._tables.change_stage(stage, replica=former.replica)
        return self._begin(stage, former, together(after), by, reason, now, step)

    def resize(
        self, stage: str, devices: int, replica: Replica | None = None, *, by: By, reason: str, now: float,
        step: int = 0,
    ) -> SwitchRecord:  # fmt: skip
        """Begins to give a stage so many devices, in such replicas; None: in those that it has.

        Raises LedgerError (not one worker, another switch in progress) and IllegalParallelism.
        """
        workers = list(self._workers(stage).values())
        if len(workers) != 1 or self.stage(stage).switch is not None:
            raise LedgerError(
                f"{stage} has {len(workers)} workers, or is switching", "wait until one works, and no more"
            )
        before = parallelism_of(workers[0])
        replica = replica or before.replica
        after = Parallelism(1, *replica).over(devices)
        if after is None:
            raise IllegalParallelism(
                f"{devices} devices cannot be split into replicas of {name_of(replica)}",
                "move as many as a replica has, or several times that",
            )
        self._tables.change_stage(stage, replica=before.replica)
        return self._begin(stage, before, after, by, reason, now, step, resizes=True)

    def pin(self, stage: str, pinned: bool) -> None:
        """Sets whether the selector leaves the stage alone; a pinned stage keeps its present replicas."""
        replica, running = self.stage(stage).replica, self.running(stage)
        if pinned and replica is None and running is not None:
            replica = running.replica
        self._tables.change_stage(stage, pinned=pinned, replica=replica)

    # --- workers' reports -------------------------------------------------------------------

    def reported(self, worker: WorkerRecord, parallelism: Parallelism | None, epoch: int) -> None:
        """Takes a heartbeat. parallelism: None if the worker does not report it; then that of its joining
        counts.
        """
        stage = worker.stage_name
        if not stage:
            return
        if epoch > self.stage(stage).epoch:
            # A store that was lost: no epoch of ours may be one that a worker knows already.
            self._tables.change_stage(stage, epoch=epoch)
        if parallelism is None or epoch < worker.epoch:
            return
        if epoch > worker.epoch or parallelism != parallelism_of(worker):
            self._set(worker.name, parallelism, epoch)

    def answered(self, command: WorkerCommand, outcome: SwitchOutcome, now: float) -> None:
        """A worker carried a command out, or rolled it back; ignored if no switch waits for that answer."""
        switch = self._waiting_for(command)
        if switch is None:
            return
        failed = outcome.rolled_back or outcome.parallelism != command.switch.parallelism
        worker = self._tables.workers[command.worker]
        self._set(command.worker, outcome.parallelism, worker.epoch if failed else command.switch.epoch)
        commanded = {name: life for name, life in switch.commanded.items() if name != command.worker}
        switch = replace(switch.with_worker(outcome), commanded=commanded)
        self._tables.change_stage(command.stage, switch=switch)
        if not failed:
            self._paused.pop(command.worker, None)
            return
        reason = outcome.message or f"it has {outcome.parallelism}"
        self._fail(command.stage, command.worker, command.incarnation, reason, now)
        # Written so that NaN counts as too far apart.
        agrees = outcome.max_logprob_difference <= self._limits.logprob_tolerance
        if not agrees and switch.by is not By.REALIGN and switch.changes_replica:
            bad = {**self.stage(command.stage).bad, name_of(switch.target.replica): reason}
            self._tables.change_stage(command.stage, bad=bad)

    def failed(self, command: WorkerCommand, reason: str, now: float) -> None:
        """A worker refused a command, or answered with an error."""
        if self._waiting_for(command) is not None:
            self._fail(command.stage, command.worker, command.incarnation, reason, now)

    # --- consequences -----------------------------------------------------------------------

    def advance(self, now: float) -> list[SwitchEnded]:
        """Ends switches that are done or overdue, begins those that correct workers; returns the former."""
        ended = []
        for stage in list(self._tables.stages):
            self._fail_lost_and_late(stage, now)
            switch = self.stage(stage).switch
            if switch is not None and not switch.commanded and not self._pending(stage, switch, now):
                ended.append(self._end(stage, switch, now))
            if self.stage(stage).switch is None:
                self._realign(stage, now)
        return ended

    def commands(self, now: float) -> list[WorkerCommand]:
        """Returns all open commands, those sent and not answered included; to be stored before sending."""
        commands = []
        for stage, record in list(self._tables.stages.items()):
            switch = record.switch
            if switch is None:
                continue
            workers = self._workers(stage)
            if pending := self._pending(stage, switch, now):
                incarnations = {name: workers[name].incarnation for name in pending}
                switch = replace(switch, commanded={**switch.commanded, **incarnations})
                self._tables.change_stage(stage, switch=switch)
            for name, incarnation in switch.commanded.items():
                worker = workers.get(name)
                if worker is not None and worker.incarnation == incarnation:
                    commands += self._commands_to(stage, worker, switch)
        return commands

    # --- within -----------------------------------------------------------------------------

    def _begin(
        self, stage: str, before: Parallelism, after: Parallelism, by: By, reason: str, now: float,
        step: int = 0, resizes: bool = False,
    ) -> SwitchRecord:  # fmt: skip
        epoch = self.stage(stage).epoch + 1
        self._began_s[stage] = now
        self._tried[stage] = set()
        switch = SwitchRecord(
            epoch=epoch,
            before=(before.dp, *before.replica),
            after=(after.dp, *after.replica),
            by=by,
            reason=reason,
            step=step,
            resizes=resizes,
        )
        self._tables.change_stage(stage, epoch=epoch, switch=switch)
        return switch

    def _realign(self, stage: str, now: float) -> None:
        """Begins a switch of the workers whose replicas differ from their stage's."""
        record = self.stage(stage)
        if record.replica is None:
            return
        replica = Parallelism(1, *record.replica)
        unaligned: dict[str, Parallelism] = {}
        after = []
        for name, worker in self._workers(stage).items():
            before = parallelism_of(worker)
            target = replica.over(before.devices)
            if before.replica != record.replica and target is not None and not self._is_paused(name, now):
                unaligned[name] = before
                after.append(target)
        if not unaligned:
            return
        first = next(iter(unaligned.values()))
        alike = [before for before in unaligned.values() if before.replica == first.replica]
        reason = f"the parallelism of {', '.join(unaligned)} differs from {stage}'s"
        self._begin(stage, together(alike), together(after), By.REALIGN, reason, now)

    def _fail_lost_and_late(self, stage: str, now: float) -> None:
        """Counts workers of the stage's switch as failed that were lost or whose deadline has passed."""
        switch = self.stage(stage).switch
        if switch is None:
            return
        began_s = self._began_s.setdefault(stage, now)
        workers = self._workers(stage)
        total_s = self._limits.total_s
        for name, incarnation in switch.commanded.items():
            worker = workers.get(name)
            if worker is None or worker.incarnation != incarnation:
                self._fail(stage, name, incarnation, "lost in the middle of it", now)
            elif now - began_s > total_s:
                self._fail(stage, name, incarnation, f"no answer within {total_s:g} s", now)

    def _end(self, stage: str, switch: SwitchRecord, now: float) -> SwitchEnded:
        """Ends the stage's switch: what it has, the last switch and its cost are kept."""
        took_s = now - self._began_s.pop(stage, now)
        switch = replace(switch, seconds=max(switch.stall_s, took_s))
        self._tried.pop(stage, None)
        record, running, realigns = self.stage(stage), self.running(stage), switch.by is By.REALIGN
        replica, costs_s = record.replica, record.costs_s
        if not switch.rolled_back:
            replica = switch.target.replica
            if not realigns and not switch.resizes:
                costs_s = [*costs_s, switch.cost_s][-COSTS:]
        elif realigns and running is not None and not record.pinned:
            # All workers have the same replica, though not the stage's former one: the stage takes theirs.
            replica = running.replica
        elif switch.resizes and running == switch.target:
            # It was carried out after all: only the answer is missing.
            replica = switch.target.replica
        last = record.last if realigns else switch
        self._tables.change_stage(stage, switch=None, last=last, replica=replica, costs_s=costs_s)
        ended = SwitchEnded(stage, switch)
        self._tables.record_fact(ended)
        return ended

    def _pending(self, stage: str, switch: SwitchRecord, now: float) -> list[str]:
        """Workers that still have to get the command."""
        if switch.rolled_back and switch.by is not By.REALIGN:
            return []
        tried = self._tried.setdefault(stage, set())
        return [
            name
            for name, worker in self._workers(stage).items()
            if switch.goal(parallelism_of(worker)) not in (None, parallelism_of(worker))
            and name not in switch.commanded
            and (name, worker.incarnation) not in tried
            and not (switch.by is By.REALIGN and self._is_paused(name, now))
        ]

    def _commands_to(self, stage: str, worker: WorkerRecord, switch: SwitchRecord) -> list[WorkerCommand]:
        """The command to a worker; none if its devices cannot be split so."""
        parallelism = switch.goal(parallelism_of(worker))
        if parallelism is None:
            return []
        tolerance = self._limits.logprob_tolerance
        command = SwitchCommand(switch.epoch, parallelism, self._limits, tolerance, switch.reason)
        return [WorkerCommand(stage, worker.name, worker.incarnation, worker.address, command)]

    def _fail(self, stage: str, worker: str, incarnation: int, reason: str, now: float) -> None:
        """One worker did not follow its command: the switch is rolled back."""
        switch = self.stage(stage).switch
        assert switch is not None
        self._tried.setdefault(stage, set()).add((worker, incarnation))
        message = f"{worker}: {reason}"
        messages = [text for text in switch.message.split("; ") if text]
        if message not in messages and len(messages) < MESSAGES:
            messages.append(message)
        commanded = {name: life for name, life in switch.commanded.items() if name != worker}
        failed = replace(switch, commanded=commanded, rolled_back=True, message="; ".join(messages))
        self._tables.change_stage(stage, switch=failed)
        retry_s = self._limits.retry_s
        if switch.by is By.REALIGN:
            pause_s = min(2 * self._paused.get(worker, (0.0, retry_s / 2))[1], LONGEST_PAUSE * retry_s)
            self._paused[worker] = now + pause_s, pause_s
        elif switch.changes_replica:
            self._avoided[stage, name_of(switch.target.replica)] = now + retry_s, message

    def _waiting_for(self, command: WorkerCommand) -> SwitchRecord | None:
        """The stage's switch, if it waits for an answer to this very command."""
        switch = self.stage(command.stage).switch
        if switch is None or command.switch.epoch != switch.epoch:
            return None
        worker = self._tables.workers.get(command.worker)
        if worker is None or worker.incarnation != command.incarnation:
            return None
        return switch if switch.commanded.get(command.worker) == command.incarnation else None

    def _is_paused(self, worker: str, now: float) -> bool:
        return now < self._paused.get(worker, (-math.inf, 0.0))[0]

    def _set(self, name: str, parallelism: Parallelism, epoch: int) -> None:
        degrees = (parallelism.dp, *parallelism.replica)
        self._tables.change_worker(name, parallelism=degrees, epoch=epoch)

    def _workers(self, stage: str) -> dict[str, WorkerRecord]:
        workers = self._tables.workers
        return {name: worker for name, worker in workers.items() if worker.stage_name == stage}
