"""The selector's decisions, by stage: the last decision whole, and where verdicts changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from earl.cli.lib.decisions import DecisionRecord, understood
from earl.cli.report.sections.layouts import bands
from earl.cli.report.sections.series import fewer, thinned

# Decisions of a stage that are drawn; of more, every other one of the older half goes.
STEPS = 10_000
LENGTHS = ("longest", "95th percentile", "mean")
# The last changes of the verdict that are listed.
LISTED = 200


@dataclass(frozen=True, slots=True)
class DecidedStep:
    """The workload that a decision for `step` saw in the step before it, and both layouts. tokens: as in
    LENGTHS.
    """

    step: int
    tokens: tuple[float, float, float]
    chosen: str
    running: str


@dataclass(slots=True)
class Stage:
    """The choices for one stage. changes: (step, reason) of each verdict that differs from the one before."""

    steps: list[DecidedStep] = field(default_factory=list)

    last: DecisionRecord | None = None
    changes: list[tuple[int, str]] = field(default_factory=list)


class Chosen:
    """Decisions in the order of their lines; a line takes back every earlier one for its step or later."""

    def __init__(self) -> None:
        self._stages: dict[str, Stage] = {}

    def clear(self) -> None:
        self._stages.clear()

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds lines of decisions.jsonl; malformed ones are skipped."""
        for line in understood(records):
            stage = self._stages.setdefault(line.stage, Stage())
            while stage.changes and stage.changes[-1][0] >= line.step:
                stage.changes.pop()
            while stage.steps and stage.steps[-1].step >= line.step:
                stage.steps.pop()
            workload = line.seen
            tokens = (workload.max_tokens, workload.p95_tokens, workload.mean_tokens)
            stage.steps.append(DecidedStep(line.step, tokens, str(line.verdict.after), str(line.running)))
            if len(stage.steps) > STEPS:
                stage.steps = fewer(stage.steps, STEPS)
            stage.last = line
            if line.verdict.switched:
                stage.changes.append((line.step, line.verdict.reason))

    def section(self) -> list[dict[str, Any]]:
        """The last decision of every stage, and all of them in short."""
        return [
            {"changed": len(stage.changes), **decision_fields(stage.last), "history": history(stage)}
            for _, stage in sorted(self._stages.items())
            if stage.last is not None
        ]


def history(stage: Stage) -> dict[str, Any]:
    """lengths: curves of what was seen; chosen, ran: layouts as bands; changes: steps with their reasons."""
    return {
        "lengths": {
            name: thinned([(decided.step - 1.0, decided.tokens[place]) for decided in stage.steps])
            for place, name in enumerate(LENGTHS)
        },
        "chosen": bands([(decided.step, decided.chosen) for decided in stage.steps]),
        # A decision is for the step after the one that it saw, which ran as it says.
        "ran": bands([(decided.step - 1, decided.running) for decided in stage.steps]),
        "changes": stage.changes[-LISTED:],
    }


def decision_fields(line: DecisionRecord) -> dict[str, Any]:
    """A decision as JSON, layouts as text."""
    shown = line.model_dump(mode="json", exclude={"running", "candidates", "verdict"})
    verdict = line.verdict.model_dump(mode="json", exclude={"before", "after"})
    before = line.verdict.before
    shown["running"] = str(line.running)
    shown["verdict"] = {**verdict, "after": str(line.verdict.after), "before": str(before) if before else ""}
    shown["candidates"] = [
        {**candidate.model_dump(mode="json", exclude={"parallelism"}), "layout": str(candidate.parallelism)}
        for candidate in line.candidates
    ]
    return shown
