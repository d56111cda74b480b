"""The outline of a run and its ledger, as far as its files and its last known status tell them.

state: "live", "silent" or "ended", as in earl.dashboard.live; "running" for a run that was read without
asking its services.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from earl.cli.lib.figures import status_retention
from earl.cli.lib.status_text import paced_line
from earl.cli.lib.step_text import step_text
from earl.config.paced_check import paced_text
from earl.config.run import RunConfig
from earl.stack.ending import ending_reason
from earl.stack.record import read_record
from earl.stack.run_files import FAILURE, RESULT, read_object
from earl.stack.status import RunStatus

TILES = ("win_rate", "reward_mean", "tokens_per_s", "staleness_mean", "staleness_max", "length_mean",
         "phase_left_s")  # fmt: skip


def run_section(
    directory: Path, config: RunConfig, status: RunStatus, state: str, last_step: Mapping[str, Any]
) -> dict[str, Any]:
    """Builds the section at the head of the page. last_step: the last record of the metrics."""
    ended = state == "ended"
    result = read_object(directory / RESULT) if ended else {}
    record = read_record(directory) if ended else None
    recorded_s = record.status.elapsed_s if record is not None and record.outcome else 0.0
    elapsed_s = recorded_s or status.elapsed_s or result.get("run_seconds") or last_step.get("time_s", 0.0)
    shown: dict[str, Any] = {
        "name": config.name,
        "environment": " + ".join(entry.label for entry in config.mixture),
        "model": model_text(config),
        "seed": config.seed,
        "paced": paced_line(status) or paced_text(config),
        "state": state,
        "phase": status.phase,
        "step": status.step,
        "steps": status.steps or config.scheduler.steps,
        "warmup_batches": config.warmup.batches,
        "version": status.version or last_step.get("version", 0),
        "best_version": status.best_version or result.get("best_version") or 0,
        "elapsed_s": elapsed_s,
        "message": status.message,
        "done": status.done,
        "metrics": {name: status.metrics[name] for name in TILES if name in status.metrics},
        "stages": [asdict(stage) for stage in status.stages],
        "evaluating": evaluating(status),
        "retention": status_retention(status if status.evaluations or record is None else record.status),
        "doing": step_text(status) if state == "live" else "",
    }
    if not status.phase and last_step:
        shown |= {"phase": last_step.get("phase", ""), "step": last_step.get("step", 0)}
    if ended:
        failure = read_object(directory / FAILURE)
        reason = ending_reason(record.outcome, record.status, failure) if record is not None else ""
        shown |= {"why": reason, "failure": failure}
    return shown


def final_status(directory: Path, state: str) -> RunStatus | None:
    """The last status of a run that has ended, however it did; None if its launcher recorded no ledger."""
    record = read_record(directory) if state == "ended" else None
    known = record is not None and record.outcome and record.status.ledger.issued
    return record.status if record is not None and known else None


def ledger_of(status: RunStatus) -> dict[str, Any]:
    """The ledger of a status, by state, with what each stage has done with its trajectories."""
    roles = [asdict(role) for role in status.roles]
    return {**asdict(status.ledger), "live": status.ledger.live, "roles": roles}


def recorded_ledger(directory: Path, state: str, last_step: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ledger as the launch of an ended run recorded it; else as of the last step."""
    final = final_status(directory, state)
    if final is not None:
        return {"state": state, **ledger_of(final), "final": True}
    counts = {
        key.removeprefix("ledger."): value for key, value in last_step.items() if key.startswith("ledger.")
    }
    names = ("issued", "trained", "replayed", "evaluated", "pending", "leased", "ready", "planned")
    shown: dict[str, Any] = {name: counts.get(name, 0) for name in names}
    shown["dropped"] = {key.partition(":")[2]: value for key, value in counts.items() if ":" in key}
    shown["live"] = sum(shown[name] for name in names[4:])
    return {"state": state, **shown, "roles": [], "step": last_step.get("step", 0)}


def evaluating(status: RunStatus) -> dict[str, Any] | None:
    """The evaluation in progress; None if there is none."""
    in_progress = [latest for latest in status.evaluations if latest.done + latest.failed < latest.episodes]
    if not in_progress:
        return None
    latest = in_progress[-1]
    return {"name": latest.name, "done": latest.done + latest.failed, "episodes": latest.episodes}


def model_text(config: RunConfig) -> str:
    scratch = config.model.scratch
    return config.model.path or f"{scratch.family} from scratch, {scratch.layers} × {scratch.hidden_size}"
