"""A snapshot of a run, taken from outside: its launcher's record, its scheduler, its gateway, its directory.

    launch.json ─► state, processes ┐
    scheduler (GetStatus, tickets) ─┼─► RunSnapshot ─► earl status, earl top
    gateway (ListEnvironments) ─────┤
    failure.json, endpoints.json ───┘

A service that does not answer is listed in `silent` with the reason, and its last known state stays:
a snapshot never fails because a service does.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from earl.cli.lib.find_run import metrics_of, pick_run
from earl.cli.lib.gateway_codec import GatewayEnvironment, GatewayViewer
from earl.cli.lib.run_services import services_of
from earl.cli.lib.snapshot_clock import SnapshotClock
from earl.errors import EarlError
from earl.obs.metrics import plain
from earl.obs.tail import Tail
from earl.rpc.auth import check_call, split_address
from earl.rpc.token_file import READERS, Role
from earl.stack.cluster.access import access_of
from earl.stack.codec import OperatorClient
from earl.stack.ending import ending_reason
from earl.stack.record import LaunchRecord, is_held, read_record
from earl.stack.run_files import FAILURE, read_object
from earl.stack.status import ProcessState, RunStatus, TicketLease

SNAPSHOT_S = 2.0
# The oldest leases that are shown.
LEASES = 5
METRICS = "metrics.jsonl"
# Read from the end of the metrics for the last step, whose line is far shorter.
METRICS_BYTES = 1 << 17
# The directory of a run that is another machine's.
NOWHERE = Path(os.devnull)


class RunState(StrEnum):
    """The state of a run."""

    STARTING = "starting"
    RUNNING = "running"
    COMPLETE = "complete"
    STOPPED = "stopped"
    FAILED = "failed"
    # Its launcher ended without recording an outcome: it was killed, or the machine was rebooted.
    LOST = "lost"

    @property
    def is_active(self) -> bool:
        return self in (RunState.STARTING, RunState.RUNNING)


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The known state of a run. silent: for each service that did not answer, by name, the reason.

    elapsed_s: of the whole run, all launches together. failure: error, message and exit_code of the last
    launch. endpoints: addresses by name. leases: the oldest, at most LEASES.
    """

    directory: Path
    state: RunState
    status: RunStatus = field(default_factory=RunStatus)
    processes: tuple[ProcessState, ...] = ()
    environments: tuple[GatewayEnvironment, ...] = ()
    endpoints: Mapping[str, str] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    failure: Mapping[str, Any] = field(default_factory=dict)
    elapsed_s: float = 0.0
    leases: tuple[TicketLease, ...] = ()

    @property
    def ending_reason(self) -> str:
        """Returns why the run ended, in one sentence; "" while it is running, and for a fleet's."""
        if self.state.is_active or self.directory == NOWHERE:
            return ""
        return ending_reason(self.state.value, self.status, self.failure)

    def as_object(self) -> dict[str, Any]:
        """The snapshot for JSON, by field names.

        The ledger also gets live and dropped_total; NaN becomes null.
        """
        shown = asdict(self)
        shown["directory"] = str(self.directory)
        shown["state"] = self.state.value
        shown["why_ended"] = self.ending_reason
        ledger = self.status.ledger
        shown["status"]["ledger"] |= {"live": ledger.live, "dropped_total": ledger.dropped_total}
        return plain(shown)


class RunMonitor:
    """Takes snapshots of one run over the same connections; `close` when done."""

    def __init__(self, directory: Path, name: str, scheduler: str, gateway: str) -> None:
        """directory: the run's, or NOWHERE. name: "" if unknown. gateway: "" for none. Raises ConfigError."""
        for address in filter(None, (scheduler, gateway)):
            split_address(address)
        self.directory = directory
        self._name = name
        self._addresses = scheduler, gateway
        self._access = access_of(directory, *READERS)
        self._clock = SnapshotClock()
        self._last = RunSnapshot(directory, RunState.LOST, RunStatus(run=name or scheduler))

    @classmethod
    def of_run(cls, directory: Path) -> RunMonitor:
        """Follows a run on this machine. Raises ConfigError if the directory is no run's."""
        run = services_of(directory)
        return cls(directory, run.name, run.scheduler, run.gateway)

    @classmethod
    def of_fleet(cls, scheduler: str, gateway: str) -> RunMonitor:
        """Follows a fleet's run by the addresses of its services; "" for no gateway.

        Raises ConfigError, InsecureCall.
        """
        monitor = cls(NOWHERE, "", scheduler, gateway)
        if monitor._access.token:
            for address in filter(None, (scheduler, gateway)):
                check_call(address, monitor._access.tls)
        return monitor

    async def pin(self, stage: str, *, pin: bool, deadline_s: float) -> None:
        """Pins a stage in the parallelism that it has, or unpins it, with the operator's token.

        Raises what the scheduler refuses it with.
        """
        client = OperatorClient(self._addresses[0], access_of(self.directory, Role.OPERATOR))
        try:
            await client.set_parallelism(stage, None, pin=pin, wait_s=0.0, deadline_s=deadline_s)
        finally:
            await client.close()

    # Connections belong to the loop that they are made on, that of the first snapshot.

    @cached_property
    def scheduler(self) -> OperatorClient:
        return OperatorClient(self._addresses[0], self._access)

    @cached_property
    def gateway(self) -> GatewayViewer | None:
        return GatewayViewer(self._addresses[1], self._access) if self._addresses[1] else None

    async def snapshot(self, timeout_s: float = SNAPSHOT_S) -> RunSnapshot:
        """Collects the state of the run, within about timeout_s."""
        record, held = read_record(self.directory), is_held(self.directory)
        silent: dict[str, str] = {}
        status, environments, leases = None, None, ()
        if held or record is None or not record.outcome:
            # Where the launcher is gone, services that do not answer at once will not: it started them.
            retry_s = timeout_s if held or record is None else 0.0
            (status, leases), environments = await asyncio.gather(
                self._status(timeout_s, retry_s, silent), self._environments(timeout_s, retry_s, silent)
            )
        state = state_of(record, held, status is not None, failed=(self.directory / FAILURE).is_file())
        answered, active = status is not None, state.is_active
        if status is None:
            status = record.status if record is not None and record.outcome else self._last.status
        if environments is None:
            environments = self._last.environments if active else ()
        last_step_s = time_of_last_step(self.directory) if state is RunState.LOST else 0.0
        worked_s = elapsed_s(record, status, active=active, last_step_s=last_step_s)
        self._last = RunSnapshot(
            self.directory,
            state,
            status if status.run else replace(status, run=self._last.status.run),
            with_ages(record) if record is not None else (),
            environments,
            metrics_of(self.directory) if active else {},
            silent if active or self.directory == NOWHERE else {},
            read_object(self.directory / FAILURE),
            self._clock.shown(worked_s, active=active, answered=answered),
            leases,
        )
        return self._last

    async def _status(
        self, timeout_s: float, retry_s: float, silent: dict[str, str]
    ) -> tuple[RunStatus | None, tuple[TicketLease, ...]]:
        status, leases = await asyncio.gather(
            self.scheduler.status(timeout_s, retry_s),
            self.scheduler.oldest_leases(LEASES, timeout_s, retry_s),
            return_exceptions=True,
        )
        if isinstance(status, EarlError):
            silent["scheduler"] = status.message
            return None, ()
        if isinstance(status, BaseException):
            raise status
        if isinstance(leases, EarlError):
            leases = ()  # a part of the picture: the status is complete without it
        if isinstance(leases, BaseException):
            raise leases
        if self._name and status.run != self._name:
            silent["scheduler"] = f"{status.run} is at its address now"
            return None, ()
        return status, leases

    async def _environments(
        self, timeout_s: float, retry_s: float, silent: dict[str, str]
    ) -> tuple[GatewayEnvironment, ...] | None:
        if self.gateway is None:
            return ()
        try:
            return tuple(await self.gateway.listed(timeout_s, retry_s))
        except EarlError as error:
            silent["gateway"] = error.message
            return None

    async def close(self) -> None:
        for name in ("scheduler", "gateway"):
            client: OperatorClient | GatewayViewer | None = self.__dict__.pop(name, None)
            if client is not None:
                await client.close()


def state_of(record: LaunchRecord | None, held: bool, answers: bool, *, failed: bool) -> RunState:
    """The state of a run.

    answers: whether its scheduler answers, which decides where no launcher is on this machine.
    """
    if held:
        return RunState.RUNNING if record is not None and record.ready_s else RunState.STARTING
    if record is not None:
        return RunState(record.outcome) if record.outcome else RunState.LOST
    if answers:
        return RunState.RUNNING
    return RunState.FAILED if failed else RunState.LOST


def with_ages(record: LaunchRecord) -> tuple[ProcessState, ...]:
    """The processes, with the seconds in their states until now, or until the launch ended."""
    since_s = ((record.ended_ns or time.time_ns()) - record.written_ns) / 1e9
    return tuple(
        replace(process, seconds=process.seconds + max(0.0, since_s)) for process in record.processes
    )


def elapsed_s(
    record: LaunchRecord | None, status: RunStatus, *, active: bool, last_step_s: float = 0.0
) -> float:
    """Seconds that the run has worked, all its launches together: as its scheduler says, as everywhere.

    Before a launch's scheduler answers: those of earlier launches alone, which its clock continues; that
    clock does not count the start-up. active: the launch has not ended; of one that was lost the seconds
    until its last record count, or until its last step if that was later. last_step_s: the time of that step,
    0 if it is unknown.
    """
    if status.elapsed_s or record is None:
        return max(status.elapsed_s, last_step_s)
    earlier_s = record.status.elapsed_s
    if active or not record.started_ns:
        return max(earlier_s, last_step_s)
    until_ns = record.ended_ns or record.written_ns
    return max(last_step_s, earlier_s + max(0.0, (until_ns - record.started_ns) / 1e9))


def time_of_last_step(directory: Path) -> float:
    """The seconds that the run had worked at its last recorded step; 0 if it recorded none."""
    tail = Tail(directory / METRICS)
    try:
        tail.skip_to_last(METRICS_BYTES)
        records = tail.read()
    except OSError:  # there is no such file, or this user cannot read it
        return 0.0
    times = (record.get("time_s") for record in records)
    return max((float(time_s) for time_s in times if isinstance(time_s, (int, float))), default=0.0)


def monitor_of(run: Path | None, scheduler: str, gateway: str) -> RunMonitor:
    """A monitor at a fleet where its scheduler is named, else at a run of this machine: the named one, the
    one that is running, or the newest that trains. Raises ConfigError.
    """
    if scheduler:
        return RunMonitor.of_fleet(scheduler, gateway)
    return RunMonitor.of_run(pick_run(run, ended=True))
