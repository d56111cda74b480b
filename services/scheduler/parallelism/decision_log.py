"""decisions.jsonl: a line per decision, with all that it rests on; and decisions read back from lines.

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
from services.scheduler.monitor.workload import StepFigures
from services.scheduler.selector.decision import Decision, LayoutCandidate, Workload
from services.scheduler.selector.stage_policies import Observed, Past, SelectorVerdict

NAME = "decisions.jsonl"


def encode(
    verdict: SelectorVerdict, step: StepFigures, took_s: float, epoch: int, held: str
) -> dict[str, Any]:
    """The line of a decision.

    step: the one that was committed before the decision. took_s: seconds of deciding. epoch: of the switch
    that carries the decision out, 0 if none does; held: the reason, "" if there was nothing to carry out.
    """
    decision, load = verdict.decision, step.stages[verdict.stage]
    return {
        "step": decision.step,
        "stage": verdict.stage,
        "policy": verdict.policy,
        "devices": verdict.running.devices,
        "running": verdict.running.as_dict(),
        "seen": load_line(load),
        "growth": step.growth,
        "episode_tokens": asdict(step.episodes),
        "turn_tokens": asdict(step.turns),
        "correction": verdict.correction,
        "expected": asdict(decision.expected) if decision.expected is not None else None,
        "headroom": decision.headroom,
        "candidates": [_candidate(candidate) for candidate in decision.candidates],
        "verdict": _verdict(decision),
        "sentence": verdict.sentence,
        "epoch": epoch,
        "held": held,
        "decision_ms": round(took_s * 1e3, 3),
    }


def _candidate(candidate: LayoutCandidate) -> dict[str, Any]:
    figures = asdict(candidate)
    figures["why"] = figures.pop("reason")
    return {**figures, "parallelism": candidate.parallelism.as_dict()}


def _verdict(decision: Decision) -> dict[str, Any]:
    figures = ("switched", "urgent", "saving_s", "cost_s", "horizon_steps", "reason")
    return {
        "before": decision.before.as_dict() if decision.before is not None else None,
        "after": decision.after.as_dict(),
        **{name: getattr(decision, name) for name in figures},
    }


def past(lines: Iterable[Mapping[str, Any]], most: int, below: float = math.inf) -> dict[str, list[Past]]:
    """The last `most` decisions of each stage for steps below `below`, oldest first.

    Lines that hold no decision are left out.
    """
    stages: dict[str, list[Past]] = {}
    for line in lines:
        decision = _past(line)
        if decision is None or decision.step >= below:
            continue
        decisions = stages.setdefault(str(line["stage"]), [])
        while decisions and decisions[-1].step >= decision.step:
            decisions.pop()
        decisions.append(decision)
    return {stage: decisions[-most:] for stage, decisions in stages.items()}


def _past(line: Mapping[str, Any]) -> Past | None:
    try:
        load = line["seen"]
        figures = ("mean_tokens", "p95_tokens", "max_tokens", "concurrency")
        workload = Workload(*(float(load[name]) for name in figures))
        rate = load["tokens_per_device_s"]
        running = Parallelism(**line["running"])
        before = line["verdict"]["before"]
        observed = Observed(running, workload, None if rate is None else float(rate))
        return Past(int(line["step"]), observed, Parallelism(**before) if before else running)
    except (KeyError, TypeError, ValueError):
        return None
