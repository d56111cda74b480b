"""What the run's services say, as sections of the page; and, where one does not answer, since when.

States: "live": the scheduler answers; "silent": it does not, though the run goes on; "ended": the run's
launcher is gone. A figure that is shown is either current, or says how old it is.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from earl.config.run import RunConfig
from earl.dashboard.codec_services import Services
from earl.errors import EarlError
from earl.stack.record import is_held
from earl.stack.rundir import FAILURE
from earl.stack.status import RunStatus, WorkerState

# A page that shows what is old should say so soon; one of a run that ended asks only in passing.
CALL_S = 2.0
PROBE_S = 0.2
RESULT = "result.json"


class Live:
    """services: of the run, as far as it goes on."""

    def __init__(self, directory: Path, config: RunConfig, services: Services) -> None:
        self._directory = directory
        self._config = config
        self._services = services
        self._status = RunStatus(run=config.name)
        # Unix seconds of the last answer of each service, and why there was none since.
        self._heard: dict[str, float] = {}
        self._silent: dict[str, tuple[float, str]] = {}

    async def look(self, last_step: Mapping[str, Any]) -> dict[str, Any]:
        """The sections as they are now. last_step: what the last line of the metrics says."""
        goes_on = is_held(self._directory) or "EARL_SCHEDULER" in os.environ
        bound_s = CALL_S if goes_on else PROBE_S
        status = await self._answered("scheduler", self._services.status(bound_s))
        if status is not None and status.run != self._config.name:
            text = f"{self._services.scheduler} belongs to run {status.run!r} now"
            status = None
            self._silent["scheduler"] = (self._silent.get("scheduler", (time.time(), ""))[0], text)
        if status is not None:
            self._status = status
        # A fleet's run has no launcher on this machine.
        state = "live" if status is not None else "silent" if goes_on and not self._over else "ended"
        sections: dict[str, Any] = {
            "run": self._run(state, last_step),
            "ledger": self._ledger(state, last_step),
            "workers": {"state": state, "rows": [worker_row(worker) for worker in self._status.workers]},
        }
        if state != "live":
            sections["workers"]["heard"] = self._heard.get("scheduler")
        sections["hosts"] = await self._hosts(state)
        sections["tickets"] = await self._tickets(state)
        return sections

    @property
    def _over(self) -> bool:
        """The scheduler said so, and its launcher is gone."""
        return self._status.done and not is_held(self._directory)

    async def _answered(self, service: str, call: Any) -> Any:
        """The answer, or None and the reason kept."""
        try:
            answer = await call
        except EarlError as error:
            since = self._silent.get(service, (time.time(), ""))[0]
            self._silent[service] = (since, error.message)
            return None
        self._silent.pop(service, None)
        self._heard[service] = time.time()
        return answer

    async def _hosts(self, state: str) -> dict[str, Any]:
        if state == "ended":
            return {"state": state, "rows": [], "environments": []}
        answer = await self._answered("gateway", self._services.gateway(CALL_S))
        if answer is None:
            return {"state": "silent", "rows": [], "environments": [], **self._silence("gateway")}
        return {"state": "live", **answer}

    async def _tickets(self, state: str) -> dict[str, Any]:
        if state != "live":
            return {"state": state, "rows": []}
        answer = await self._answered("tickets", self._services.tickets(CALL_S))
        if answer is None:
            return {"state": "silent", "rows": [], **self._silence("tickets")}
        return {"state": "live", **answer}

    def _silence(self, service: str) -> dict[str, Any]:
        since, error = self._silent[service]
        return {"since": self._heard.get(service, since), "error": error}

    def _run(self, state: str, last_step: Mapping[str, Any]) -> dict[str, Any]:
        config, status = self._config, self._status
        shown: dict[str, Any] = {
            "name": config.name,
            "environment": config.environment.name,
            "model": model_text(config),
            "seed": config.seed,
            "state": state,
            "phase": status.phase,
            "step": status.step,
            "steps": status.steps or config.scheduler.steps,
            "warmup_batches": config.warmup.batches,
            "version": status.version or last_step.get("version", 0),
            "best_version": status.best_version,
            "elapsed_s": status.elapsed_s or last_step.get("time_s", 0.0),
            "message": status.message,
            "done": status.done,
            "metrics": {name: status.metrics[name] for name in TILES if name in status.metrics},
            "stages": [asdict(stage) for stage in status.stages],
            "evaluating": evaluating(status),
        }
        if not status.phase and last_step:
            shown |= {"phase": last_step.get("phase", ""), "step": last_step.get("step", 0)}
        if state == "silent":
            shown |= self._silence("scheduler")
        if state == "ended":
            shown |= {"result": read_object(self._directory / RESULT),
                      "failure": read_object(self._directory / FAILURE)}  # fmt: skip
        return shown

    def _ledger(self, state: str, last_step: Mapping[str, Any]) -> dict[str, Any]:
        """Live, or of the last step: its line counts what was closed and what was under way."""
        if state == "live" or self._status.ledger.issued:
            ledger = self._status.ledger
            roles = [asdict(role) for role in self._status.roles]
            heard = None if state == "live" else self._heard.get("scheduler")
            return {"state": state, **asdict(ledger), "live": ledger.live, "roles": roles, "heard": heard}
        counts = {key.removeprefix("ledger."): value for key, value in last_step.items()
                  if key.startswith("ledger.")}  # fmt: skip
        names = ("issued", "trained", "evaluated", "pending", "leased", "ready", "planned")
        shown: dict[str, Any] = {name: counts.get(name, 0) for name in names}
        shown["dropped"] = {key.partition(":")[2]: value for key, value in counts.items() if ":" in key}
        shown["live"] = sum(shown[name] for name in names[3:])
        return {"state": state, **shown, "roles": [], "step": last_step.get("step", 0)}


TILES = ("win_rate", "reward_mean", "tokens_per_s", "staleness_mean", "staleness_max", "length_mean")


def worker_row(worker: WorkerState) -> dict[str, Any]:
    shown = asdict(replace(worker, gauges=dict(worker.gauges), transfers={}))
    shown["transfers"] = [
        {"path": path, **asdict(moved), "gb_per_s": moved.gb_per_s}
        for path, moved in worker.transfers.items()
    ]
    shown["silent_s"] = round(worker.silent_s, 1)
    return shown


def evaluating(status: RunStatus) -> dict[str, Any] | None:
    """The evaluation that is under way."""
    under_way = [latest for latest in status.evaluations if latest.done + latest.failed < latest.episodes]
    if not under_way:
        return None
    latest = under_way[-1]
    return {"name": latest.name, "done": latest.done + latest.failed, "episodes": latest.episodes}


def model_text(config: RunConfig) -> str:
    scratch = config.model.scratch
    return config.model.path or f"{scratch.family} from scratch, {scratch.layers} × {scratch.hidden_size}"


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
