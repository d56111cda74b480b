"""What a run's decisions.jsonl holds, as values: a line per decision, of the scheduler's selector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from earl.errors import IllegalParallelism
from earl.obs.metrics import read_lines
from earl.parallelism import Parallelism

FILE = "decisions.jsonl"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Load(_Value):
    """Lengths in tokens, sequences at once in the whole pool."""

    mean_tokens: float
    p95_tokens: float
    max_tokens: float
    concurrency: float


class Kv(_Value):
    """At its fullest; in all engines."""

    used_tokens: float
    committed_tokens: float
    total_tokens: float
    used_fraction: float


class Seen(Load):
    """What the step before the decision was; None where nobody said."""

    concurrency_most: float
    tokens_per_device_s: float | None = None
    memory_fraction: float | None = None
    kv: Kv | None = None


class Candidate(_Value):
    """As it was weighed. step_s: None where there is no throughput."""

    parallelism: Parallelism
    tokens_per_device_s: float
    memory_fraction: float | None = None
    fits: bool
    step_s: float | None = None
    why: str = ""
    source: str = ""


class Verdict(_Value):
    """before, after: of the selector's own course. None for a number without a bound."""

    before: Parallelism | None = None
    after: Parallelism
    switched: bool
    urgent: bool
    saving_s: float | None = None
    cost_s: float | None = None
    horizon_steps: float | None = None
    reason: str


class Line(_Value):
    """One decision, for `step`, after the step before it. running: what the stage had in truth."""

    step: int
    stage: str
    policy: str
    devices: int
    running: Parallelism
    seen: Seen
    growth: float
    # What the predictions are multiplied by, where the stage is now, for what the run observed.
    correction: float = 1.0
    expected: Load | None = None
    candidates: tuple[Candidate, ...] = ()
    verdict: Verdict
    sentence: str
    # Of the switch that carries it out, 0 if none does; held: why none does.
    epoch: int = 0
    held: str = ""
    decision_ms: float


def read_decisions(directory: Path) -> dict[str, list[Line]]:
    """The run's decisions by stage, in order of their steps; without what was rolled back."""
    return surviving(read_lines(directory / FILE))


def surviving(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Line]]:
    """By stage; a line takes back every earlier one for its step or a later one. No line: left out."""
    by_stage: dict[str, list[Line]] = {}
    for record in records:
        try:
            line = Line.model_validate(record)
        except (ValidationError, IllegalParallelism):
            continue
        lines = by_stage.setdefault(line.stage, [])
        while lines and lines[-1].step >= line.step:
            lines.pop()
        lines.append(line)
    return by_stage


def changes(lines: Sequence[Line]) -> list[Line]:
    """Those of one stage that chose otherwise than the one before."""
    return [line for line in lines if line.verdict.switched]
