"""One look at a run, from outside: its launcher's record, its scheduler, its gateway, its directory.

    launch.json ─► state, processes ┐
    scheduler (GetStatus, tickets) ─┼─► Look ─► earl status, earl top
    gateway (ListEnvironments) ─────┤
    failure.json, endpoints.json ───┘

What does not answer is said in `silent`, and what was known of it last stays: a look never fails because
a service does.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from earl.cli.lib.find_run import chosen, config_of, metrics_of
from earl.cli.lib.gateway_codec import Gateway, Listed
from earl.errors import EarlError
from earl.obs.metrics import plain
from earl.rpc.access import Access
from earl.rpc.auth import check_call, split_address
from earl.rpc.token_file import LOOKS, Role
from earl.stack.codec import OperatorClient
from earl.stack.record import LaunchRecord, is_held, read_record
from earl.stack.rundir import FAILURE
from earl.stack.status import ProcessState, RunStatus, TicketLease

LOOK_S = 2.0
# The oldest leases that are shown.
LEASES = 5
# The directory of a run that is another machine's.
NOWHERE = Path(os.devnull)


class State(StrEnum):
    """Where a run stands."""

    STARTING = "starting"
    RUNNING = "running"
    COMPLETE = "complete"
    STOPPED = "stopped"
    FAILED = "failed"
    # Its launcher is gone without a word: killed, or the machine was started anew.
    LOST = "lost"

    @property
    def goes_on(self) -> bool:
        return self in (State.STARTING, State.RUNNING)


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of a run now. silent: why, by name, of services that did not answer.

    elapsed_s: since the launch began, or that it took. failure: error, message and exit_code of the last
    launch. endpoints: addresses by name. leases: the oldest, at most LEASES.
    """

    directory: Path
    state: State
    status: RunStatus = field(default_factory=RunStatus)
    processes: tuple[ProcessState, ...] = ()
    environments: tuple[Listed, ...] = ()
    endpoints: Mapping[str, str] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    failure: Mapping[str, Any] = field(default_factory=dict)
    elapsed_s: float = 0.0
    leases: tuple[TicketLease, ...] = ()

    def as_object(self) -> dict[str, Any]:
        """All of it, by the names of its values; live and dropped_total of the ledger too; null for NaN."""
        shown = asdict(self)
        shown["directory"] = str(self.directory)
        shown["state"] = self.state.value
        ledger = self.status.ledger
        shown["status"]["ledger"] |= {"live": ledger.live, "dropped_total": ledger.dropped_total}
        return plain(shown)


class Looker:
    """Looks at one run again and again over the same connections; `close` when done."""

    def __init__(self, directory: Path) -> None:
        """Of a run on this machine. Raises ConfigError if this is no run's directory."""
        config = config_of(directory)
        self._set(directory, config.name, config.scheduler.bind, config.gateway.bind)

    @classmethod
    def at(cls, scheduler: str, gateway: str) -> Looker:
        """Of the run of a fleet, by the addresses of its services; "" for no gateway. Raises ConfigError,
        InsecureCall."""
        looker = cls.__new__(cls)
        looker._set(NOWHERE, "", scheduler, gateway)
        if looker._access.token:
            for address in filter(None, (scheduler, gateway)):
                check_call(address, looker._access.tls)
        return looker

    def _set(self, directory: Path, name: str, scheduler: str, gateway: str) -> None:
        for address in filter(None, (scheduler, gateway)):
            split_address(address)
        self.directory = directory
        self._name = name
        self._addresses = scheduler, gateway
        self._access = Access.of(*LOOKS)
        self._scheduler: OperatorClient | None = None
        self._gateway: Gateway | None = None
        self._last = Look(directory, State.LOST, RunStatus(run=name or scheduler))

    async def pin(self, stage: str, *, pin: bool, deadline_s: float) -> None:
        """Pins a stage in the parallelism that it has, or unpins it: as an operator; looks are a viewer's.

        Raises what the scheduler refuses it with.
        """
        client = OperatorClient(self._addresses[0], Access.of(Role.OPERATOR))
        try:
            await client.set_parallelism(stage, None, pin=pin, wait_s=0.0, deadline_s=deadline_s)
        finally:
            await client.close()

    # Connections belong to the loop that they are made on: at the first look.

    @property
    def scheduler(self) -> OperatorClient:
        if self._scheduler is None:
            self._scheduler = OperatorClient(self._addresses[0], self._access)
        return self._scheduler

    @property
    def gateway(self) -> Gateway | None:
        if self._gateway is None and self._addresses[1]:
            self._gateway = Gateway(self._addresses[1], self._access)
        return self._gateway

    async def look(self, timeout_s: float = LOOK_S) -> Look:
        """What is known now, within about timeout_s."""
        record, held = read_record(self.directory), is_held(self.directory)
        silent: dict[str, str] = {}
        status, environments, leases = None, None, ()
        if held or record is None or not record.outcome:
            (status, leases), environments = await asyncio.gather(
                self._status(timeout_s, silent), self._environments(timeout_s, silent)
            )
        state = state_of(record, held, status is not None, failed=(self.directory / FAILURE).is_file())
        if status is None:
            status = record.status if record is not None and record.outcome else self._last.status
        if environments is None:
            environments = self._last.environments if state.goes_on else ()
        self._last = Look(
            self.directory,
            state,
            status if status.run else replace(status, run=self._last.status.run),
            aged(record) if record is not None else (),
            environments,
            metrics_of(self.directory) if state.goes_on else {},
            silent if state.goes_on or self.directory == NOWHERE else {},
            failure_of(self.directory),
            elapsed_s(record, status),
            leases,
        )
        return self._last

    async def _status(
        self, timeout_s: float, silent: dict[str, str]
    ) -> tuple[RunStatus | None, tuple[TicketLease, ...]]:
        status, leases = await asyncio.gather(
            self.scheduler.status(timeout_s),
            self.scheduler.oldest_leases(LEASES, timeout_s),
            return_exceptions=True,
        )
        if isinstance(status, EarlError):
            silent["scheduler"] = status.message
            return None, ()
        if isinstance(status, BaseException):
            raise status
        if isinstance(leases, EarlError):
            leases = ()  # a part of the picture: the status stands without it
        if isinstance(leases, BaseException):
            raise leases
        if self._name and status.run != self._name:
            silent["scheduler"] = f"{status.run} is at its address now"
            return None, ()
        return status, leases

    async def _environments(self, timeout_s: float, silent: dict[str, str]) -> tuple[Listed, ...] | None:
        gateway = self.gateway
        if gateway is None:
            return ()
        try:
            return tuple(await gateway.listed(timeout_s))
        except EarlError as error:
            silent["gateway"] = error.message
            return None

    async def close(self) -> None:
        for client in (self._scheduler, self._gateway):
            if client is not None:
                await client.close()


def state_of(record: LaunchRecord | None, held: bool, answers: bool, *, failed: bool) -> State:
    """answers: its scheduler does. A run that never had a launcher on this machine goes on while it does."""
    if held:
        return State.RUNNING if record is not None and record.ready_s else State.STARTING
    if record is not None:
        return State(record.outcome) if record.outcome else State.LOST
    if answers:
        return State.RUNNING
    return State.FAILED if failed else State.LOST


def aged(record: LaunchRecord) -> tuple[ProcessState, ...]:
    """The processes, with the seconds in their states until now, or until the launch ended."""
    since_s = ((record.ended_ns or time.time_ns()) - record.written_ns) / 1e9
    return tuple(
        replace(process, seconds=process.seconds + max(0.0, since_s)) for process in record.processes
    )


def elapsed_s(record: LaunchRecord | None, status: RunStatus) -> float:
    if record is None or not record.started_ns:
        return status.elapsed_s
    return ((record.ended_ns or time.time_ns()) - record.started_ns) / 1e9


def failure_of(directory: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError):
        failure = json.loads((directory / FAILURE).read_bytes())
        if isinstance(failure, dict):
            return failure
    return {}


def looker_of(run: Path | None, scheduler: str, gateway: str) -> Looker:
    """Of a fleet where its scheduler is named, otherwise of a run of this machine: the named one, the one
    that goes on, or the newest. Raises ConfigError."""
    if scheduler:
        return Looker.at(scheduler, gateway)
    return Looker(chosen(run, ended=True))
