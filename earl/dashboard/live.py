"""The answers of the run's services as sections of the page; and, where one does not answer, since when.

States: "live": the scheduler answers; "silent": it does not, but the run has not ended; "ended": the run's
launcher is gone. A figure that is shown is either current, or shown with its age.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from earl.cli.lib.concerns import host_waits, unknown_words
from earl.cli.report.sections.outline import final_status, ledger_of, recorded_ledger, run_section
from earl.config.run import RunConfig
from earl.dashboard.codec_services import Services, beginning
from earl.errors import EarlError
from earl.stack.record import is_held
from earl.stack.status import RunStatus, WorkerState

# Short for a running run, so that old figures are marked soon; shorter after its end.
CALL_S = 2.0
PROBE_S = 0.2
# Sentences about what goes wrong now that are shown, at most.
CONCERNS = 8


class Live:
    """The sections of a running run. services: clients of its scheduler and gateway."""

    def __init__(self, directory: Path, config: RunConfig, services: Services) -> None:
        self._directory = directory
        self._config = config
        self._services = services
        self._status = RunStatus(run=config.name)
        # Unix seconds of the last answer of each service, and the reason why there was none since.
        self._answer_times: dict[str, float] = {}
        self._unreachable: dict[str, tuple[float, str]] = {}

    async def sections(self, last_step: Mapping[str, Any]) -> dict[str, Any]:
        """The sections as they are now. last_step: the last record of the metrics."""
        running = is_held(self._directory) or "EARL_SCHEDULER" in os.environ
        bound_s = CALL_S if running else PROBE_S
        status = await self._answered("scheduler", self._services.status(bound_s))
        if status is not None and status.run != self._config.name:
            text = f"{self._services.scheduler} belongs to run {status.run!r} now"
            status = None
            self._unreachable["scheduler"] = (self._unreachable.get("scheduler", (time.time(), ""))[0], text)
        if status is not None:
            self._status = status
        # A fleet's run has no launcher on this machine.
        state = "live" if status is not None else "silent" if running and not self._has_ended else "ended"
        sections: dict[str, Any] = {
            "run": self._run(state, last_step),
            "ledger": self._ledger(state, last_step),
            "workers": {"state": state, "rows": [worker_row(worker) for worker in self._status.workers]},
        }
        if state != "live":
            sections["workers"]["heard"] = self._answer_times.get("scheduler")
        hosts: dict[str, Any] = {"rows": [], "environments": [], "waiting": []}
        tickets: dict[str, Any] = {"rows": []}
        sections["hosts"], sections["tickets"] = {"state": state, **hosts}, {"state": state, **tickets}
        if state != "ended":
            sections["hosts"] = await self._listed("gateway", self._services.gateway(CALL_S), hosts)
        if state == "live":
            sections["tickets"] = await self._listed("tickets", self._services.tickets(CALL_S), tickets)
        sections["concerns"] = self._concerns(state, sections["hosts"])
        return sections

    def _concerns(self, state: str, hosts: Mapping[str, Any]) -> list[str]:
        """Sentences about what goes wrong now, as `earl status` words them; what stops a run comes first."""
        workers = self._status.workers if state == "live" else ()
        every = [
            *host_waits(workers, hosts.get("served")),
            *hosts["waiting"],
            *hosts.get("quarantines", ()),
            *unknown_words(workers),
        ]
        return [beginning(text) for text in every[:CONCERNS]]

    @property
    def _has_ended(self) -> bool:
        """Returns whether the scheduler reported the end of the run, and its launcher is gone."""
        return self._status.done and not is_held(self._directory)

    async def _answered(self, service: str, call: Any) -> Any:
        """The answer, or None and the reason kept."""
        try:
            answer = await call
        except EarlError as error:
            since = self._unreachable.get(service, (time.time(), ""))[0]
            self._unreachable[service] = (since, error.message)
            return None
        self._unreachable.pop(service, None)
        self._answer_times[service] = time.time()
        return answer

    async def _listed(self, service: str, call: Any, empty: dict[str, Any]) -> dict[str, Any]:
        """A section that lists a service's answer; `empty` with the error where there is none."""
        answer = await self._answered(service, call)
        if answer is None:
            return {"state": "silent", **empty, **self._outage(service)}
        return {"state": "live", **answer}

    def _outage(self, service: str) -> dict[str, Any]:
        since, error = self._unreachable[service]
        return {"since": self._answer_times.get(service, since), "error": error}

    def _run(self, state: str, last_step: Mapping[str, Any]) -> dict[str, Any]:
        shown = run_section(self._directory, self._config, self._status, state, last_step)
        return shown | (self._outage("scheduler") if state == "silent" else {})

    def _ledger(self, state: str, last_step: Mapping[str, Any]) -> dict[str, Any]:
        """The ledger now, or as the run's files have it."""
        if state == "live" or (self._status.ledger.issued and final_status(self._directory, state) is None):
            answered = None if state == "live" else self._answer_times.get("scheduler")
            return {"state": state, **ledger_of(self._status), "heard": answered}
        return recorded_ledger(self._directory, state, last_step)


def worker_row(worker: WorkerState) -> dict[str, Any]:
    shown = asdict(replace(worker, gauges=dict(worker.gauges), transfers={}))
    shown["transfers"] = [
        {"path": path, **asdict(moved), "gb_per_s": moved.gb_per_s}
        for path, moved in worker.transfers.items()
    ]
    shown["silent_s"] = round(worker.silent_s, 1)
    return shown
