"""The output of `earl explain` for a run whose selector decided nothing: why, measurements, what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from earl.cli.lib.probes import probed_by
from earl.cli.report.data import Record
from earl.errors import EarlError
from earl.models.spec import load_spec
from earl.models.tp import legal_parallelisms
from earl.obs.metrics import read_lines
from earl.parallelism import Parallelism

# Imports the scheduler's prediction, which the command line does without otherwise.
OUTLOOK = "services.scheduler.profiler.outlook"
OUTLOOK_S = 20.0


def reason_for_none(run_json: bytes) -> str:
    """The reason why a run has no decisions, as far as its run file shows."""
    try:
        scheduler = json.loads(run_json)["scheduler"]
        if scheduler["selector"] == "static":
            return 'scheduler.selector is "static"'
        return "no training step is complete yet" if scheduler["profile"] else "it has no profile"
    except (ValueError, KeyError, TypeError):
        return "it was made before the selector existed"


def measured_workloads(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Returns for each stage its parallelism and its measured workload at the first and at the last step."""
    records = [record for record in read_lines(run_dir / "metrics.jsonl") if "load" in record]
    if not records:
        return {}
    last = records[-1]
    return {
        stage: {
            "parallelism": _parallelism(last, stage),
            "first_step": _load(records[0], stage),
            "last_step": load,
            "step": last.get("step"),
        }
        for stage, load in sorted(last["load"].items())
    }


def outlook(run_dir: Path) -> dict[str, Any]:
    """Asks the scheduler's code what a profile would measure and could decide: {"facts", "error"}."""
    return asyncio.run(probed_by(OUTLOOK, str(run_dir.resolve()), timeout_s=OUTLOOK_S))


def unexplained_lines(run_dir: Path, run_json: bytes, stage: str, ahead: Mapping[str, Any]) -> Iterator[str]:
    """The reason, what was measured of each stage, and what a profile would measure and could decide.

    ahead: as of `outlook`.
    """
    predicted = ahead["facts"].get("stages", {})
    yield f"The selector decided nothing in {run_dir}: {reason_for_none(run_json)}."
    stages = {name: workload for name, workload in measured_workloads(run_dir).items() if stage in ("", name)}
    for name, workload in stages.items():
        parallelism = workload["parallelism"]
        first, last = workload["first_step"], workload["last_step"]
        yield f"\n{name}, {parallelism or 'parallelism unknown'}, step {workload['step']}"
        yield (
            f"  mean tokens {_number(first.get('mean_tokens'))} at the first step, "
            f"{_number(last.get('mean_tokens'))} at the last; longest {_number(last.get('max_tokens'))}"
        )
        if last.get("memory_fraction") is not None:
            yield f"  {last['memory_fraction']:.0%} of the fullest device's memory"
        if parallelism is not None:
            yield f"  {_choice(run_dir, name, parallelism)}"
        yield from (f"  {line}" for line in outlook_lines(predicted.get(name), ahead["facts"]))
    if ahead["error"] is not None:
        yield f"\nWhat a profile would decide is not known: {ahead['error']['message']}."
    yield ""
    if json.loads(run_json).get("scheduler", {}).get("selector") == "static":
        yield 'To let it decide, resume with: --scheduler.selector on, or "observe" to be told alone.'
    yield f"To measure the parallelisms of this machine: earl profile {run_dir / 'run.toml'}"


def outlook_lines(stage: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a profile of a stage would measure, how long that takes, and what is known without it.

    stage: of the facts of `outlook`; None where there is nothing to choose.
    """
    if stage is None:
        return
    for layout, share in stage["excluded"].items():
        yield (
            f"{layout} is left out by the memory model: "
            f"{share:.0%} of the memory of a rank at the longest context"
        )
    fitting = [layout for layout in stage["layouts"] if layout not in stage["excluded"]]
    if len(fitting) == 1:
        yield f"so the choice is {fitting[0]}, which alone fits"
    if not stage["lacking"]:
        yield "every layout is measured on this machine: the next launch decides by that"
        return
    seconds, limit_s = stage["predicted_s"], facts["profile_s"]
    yield f"not measured yet: {', '.join(stage['lacking'])}; a short profile takes about {seconds:.0f} s"
    if seconds > limit_s:
        yield f"no launch takes it by itself: scheduler.profile_s allows {limit_s:g} s"
    yield "it decides by tokens/s at the lengths of the run, among the layouts that fit"


def _choice(run_dir: Path, stage: str, running: Parallelism) -> str:
    """Describes the parallelisms that a profile would let the selector choose among."""
    if running.devices == 1:
        return "one device: there is nothing to choose; more engines or ranks would give a choice"
    try:
        legal = legal_parallelisms(load_spec(run_dir / "model"), running.devices)
    except EarlError as error:
        return f"which parallelisms are legal is not known: {error}"
    # Engines have no context parallelism.
    others = [
        str(degrees) for degrees in legal if degrees != running and (stage != "rollout" or degrees.cp == 1)
    ]
    if not others:
        return f"{running.devices} devices: the model's heads allow this parallelism alone"
    return f"{running.devices} devices: a profile would compare it with {', '.join(others)}"


def _parallelism(record: Record, stage: str) -> Parallelism | None:
    degrees = record.get("parallelism", {}).get(stage)
    return Parallelism(**degrees) if degrees else None


def _load(record: Record, stage: str) -> Mapping[str, Any]:
    return record["load"].get(stage, {})


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"
