"""What the selector decided, by stage: the last decision whole, and where verdicts changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from earl.cli.lib.decisions import Line
from earl.errors import IllegalParallelism


@dataclass(slots=True)
class Stage:
    """changes: (step, reason) of every verdict that was another one than before."""

    last: Line | None = None
    changes: list[tuple[int, str]] = field(default_factory=list)


class Chosen:
    """Decisions in the order of their lines; a line takes back every earlier one for its step or later."""

    def __init__(self) -> None:
        self._stages: dict[str, Stage] = {}

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Lines of decisions.jsonl; what is none is left out."""
        for record in records:
            try:
                line = Line.model_validate(record)
            except (ValidationError, IllegalParallelism):
                continue
            stage = self._stages.setdefault(line.stage, Stage())
            while stage.changes and stage.changes[-1][0] >= line.step:
                stage.changes.pop()
            stage.last = line
            if line.verdict.switched:
                stage.changes.append((line.step, line.verdict.reason))

    def changes(self, stage: str) -> list[tuple[int, str]]:
        decided = self._stages.get(stage)
        return list(decided.changes) if decided else []

    def section(self) -> list[dict[str, Any]]:
        """The last decision of every stage."""
        return [
            {"changed": len(stage.changes), **decision_fields(stage.last)}
            for _, stage in sorted(self._stages.items())
            if stage.last is not None
        ]


def decision_fields(line: Line) -> dict[str, Any]:
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
