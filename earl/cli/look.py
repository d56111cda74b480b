"""One look at a run, from outside: its launcher's record, its scheduler, its gateway, its directory.

    launch.json ─► state, processes ┐
    scheduler (GetStatus) ──────────┼─► Look ─► earl status, earl top
    gateway (ListEnvironments) ─────┤
    failure.json, endpoints.json ───┘

What does not answer is said in `silent`, and what was known of it last stays: a look never fails because
a service does.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from earl.cli.env.codec import Gateway, Listed
from earl.cli.running import config_of, metrics_of
from earl.errors import EarlError
from earl.obs.metrics import plain
from earl.rpc.access import Access
from earl.rpc.token_file import Role
from earl.stack.codec import SchedulerClient
from earl.stack.record import LaunchRecord, is_held, read_record
from earl.stack.rundir import FAILURE
from earl.stack.status import ProcessState, RunStatus

LOOK_S = 2.0


class State(StrEnum):
    """Of a run."""

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
    launch. endpoints: addresses by name.
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

    def as_object(self) -> dict[str, Any]:
        """All of it, by the names of its values; live and dropped_total of the ledger too; null for NaN."""
        found = asdict(self)
        found["directory"] = str(self.directory)
        found["state"] = self.state.value
        ledger = self.status.ledger
        found["status"]["ledger"] |= {"live": ledger.live, "dropped_total": ledger.dropped_total}
        return plain(found)


class Looker:
    """Looks at one run again and again over the same connections; `close` when done."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError if this is no run's directory."""
        config = config_of(directory)
        self.directory = directory
        self._name = config.name
        access = Access.of(Role.OPERATOR)
        self._scheduler = SchedulerClient(config.scheduler.bind, access)
        self._gateway = Gateway(config.gateway.bind, access)
        self._last = Look(directory, State.LOST, RunStatus(run=config.name))

    @property
    def scheduler(self) -> SchedulerClient:
        return self._scheduler

    async def look(self, timeout_s: float = LOOK_S) -> Look:
        """What is known now, within about timeout_s."""
        record, held = read_record(self.directory), is_held(self.directory)
        silent: dict[str, str] = {}
        status, environments = None, None
        if held or record is None or not record.outcome:
            status, environments = await asyncio.gather(
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
            status if status.run else replace(status, run=self._name),
            aged(record) if record is not None else (),
            environments,
            metrics_of(self.directory) if state.goes_on else {},
            silent if state.goes_on else {},
            failure_of(self.directory),
            elapsed_s(record, status),
        )
        return self._last

    async def _status(self, timeout_s: float, silent: dict[str, str]) -> RunStatus | None:
        try:
            status = await self._scheduler.status(timeout_s)
        except EarlError as error:
            silent["scheduler"] = error.message
            return None
        if status.run != self._name:
            silent["scheduler"] = f"{status.run} is at its address now"
            return None
        return status

    async def _environments(self, timeout_s: float, silent: dict[str, str]) -> tuple[Listed, ...] | None:
        try:
            return tuple(await self._gateway.listed(timeout_s))
        except EarlError as error:
            silent["gateway"] = error.message
            return None

    async def close(self) -> None:
        await self._scheduler.close()
        await self._gateway.close()


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
    return tuple(replace(one, seconds=one.seconds + max(0.0, since_s)) for one in record.processes)


def elapsed_s(record: LaunchRecord | None, status: RunStatus) -> float:
    if record is None or not record.started_ns:
        return status.elapsed_s
    return ((record.ended_ns or time.time_ns()) - record.started_ns) / 1e9


def failure_of(directory: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError):
        said = json.loads((directory / FAILURE).read_bytes())
        if isinstance(said, dict):
            return said
    return {}
