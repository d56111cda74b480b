"""decisions.jsonl: a line per decision, with all that it rests on; and the decisions of a line again.

After a roll-back a step appears again: a line takes back every earlier one of its stage that is for the
same step or a later one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from earl.parallelism import Parallelism
from services.scheduler.files.metrics_files import load_line
from services.scheduler.monitor.workload import Step
from services.scheduler.parallelism.actions import Action
from services.scheduler.selector.decision import Candidate, Decision, Workload
from services.scheduler.selector.stages import Observed, Past, Verdict

NAME = "decisions.jsonl"


def encode(verdict: Verdict, step: Step, took_s: float, action: Action) -> dict[str, Any]:
    """One line. step: the one that was committed before the decision; took_s: seconds of deciding."""
    decision, seen = verdict.decision, step.stages[verdict.stage]
    return {
        "step": decision.step,
        "stage": verdict.stage,
        "policy": verdict.policy,
        "devices": verdict.running.devices,
        "running": verdict.running.as_dict(),
        "seen": load_line(seen),
        "growth": step.growth,
        "episode_tokens": asdict(step.episodes),
        "turn_tokens": asdict(step.turns),
        "correction": verdict.correction,
        "expected": asdict(decision.expected) if decision.expected is not None else None,
        "candidates": [_candidate(one) for one in decision.candidates],
        "verdict": _verdict(decision),
        "sentence": verdict.sentence,
        "epoch": action.epoch,
        "held": action.held,
        "decision_ms": round(took_s * 1e3, 3),
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    return {**asdict(one), "parallelism": one.parallelism.as_dict()}


def _verdict(decision: Decision) -> dict[str, Any]:
    return {
        "before": decision.before.as_dict() if decision.before is not None else None,
        "after": decision.after.as_dict(),
        "switched": decision.switched,
        "urgent": decision.urgent,
        "saving_s": decision.saving_s,
        "cost_s": decision.cost_s,
        "horizon_steps": decision.horizon_steps,
        "reason": decision.reason,
    }


def past(lines: Iterable[Mapping[str, Any]], most: int, below: float = math.inf) -> dict[str, list[Past]]:
    """The last decisions of each stage for steps below this one, oldest first; what is none is left out."""
    found: dict[str, list[Past]] = {}
    for line in lines:
        one = _past(line)
        if one is None or one.step >= below:
            continue
        stage = found.setdefault(str(line["stage"]), [])
        while stage and stage[-1].step >= one.step:
            stage.pop()
        stage.append(one)
    return {stage: decisions[-most:] for stage, decisions in found.items()}


def _past(line: Mapping[str, Any]) -> Past | None:
    try:
        seen = line["seen"]
        workload = Workload(
            *(float(seen[name]) for name in ("mean_tokens", "p95_tokens", "max_tokens", "concurrency"))
        )
        rate = seen["tokens_per_device_s"]
        running = Parallelism(**line["running"])
        before = line["verdict"]["before"]
        return Past(
            int(line["step"]),
            Observed(running, workload, None if rate is None else float(rate)),
            Parallelism(**before) if before else running,
        )
    except (KeyError, TypeError, ValueError):
        return None
