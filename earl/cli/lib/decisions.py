"""The content of a run's decisions.jsonl, as values: a line per decision, of the scheduler's selector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from earl.errors import IllegalParallelism
from earl.obs.metrics import read_lines
from earl.parallelism import Parallelism

FILE = "decisions.jsonl"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class DecisionWorkload(_Value):
    """Lengths in tokens, sequences at once in the whole pool."""

    mean_tokens: float
    p95_tokens: float
    max_tokens: float
    concurrency: float


class KvUsage(_Value):
    """The KV of all engines together, when it was fullest."""

    used_tokens: float
    committed_tokens: float
    total_tokens: float
    used_fraction: float


class MeasuredWorkload(DecisionWorkload):
    """The workload of the step before the decision; None where it was not measured."""

    concurrency_most: float
    tokens_per_device_s: float | None = None
    memory_fraction: float | None = None
    kv: KvUsage | None = None


class RecordedCandidate(_Value):
    """A candidate as the selector weighed it. step_s: None where there is no throughput."""

    parallelism: Parallelism
    tokens_per_device_s: float
    memory_fraction: float | None = None
    fits: bool
    step_s: float | None = None
    why: str = ""
    source: str = ""


class RecordedVerdict(_Value):
    """A verdict. before, after: what the selector had chosen. None is a number without a bound."""

    before: Parallelism | None = None
    after: Parallelism
    switched: bool
    urgent: bool
    saving_s: float | None = None
    cost_s: float | None = None
    horizon_steps: float | None = None
    reason: str


class DecisionRecord(_Value):
    """One decision, for `step`, made after the step before it. running: the stage's actual parallelism."""

    step: int
    stage: str
    policy: str
    devices: int
    running: Parallelism
    seen: MeasuredWorkload
    growth: float
    # What the predictions are multiplied by, where the stage is now, for what the run observed.
    correction: float = 1.0
    expected: DecisionWorkload | None = None
    # How lengths and load were expected to grow, in words; "" in files of earlier versions.
    headroom: str = ""
    candidates: tuple[RecordedCandidate, ...] = ()
    verdict: RecordedVerdict
    sentence: str
    # Epoch of the switch that carries it out, 0 if none does; held: why none does.
    epoch: int = 0
    held: str = ""
    decision_ms: float


def read_decisions(directory: Path) -> dict[str, list[DecisionRecord]]:
    """The run's decisions by stage, in order of their steps; without what was rolled back."""
    return surviving(read_lines(directory / FILE))


def surviving(records: Iterable[Mapping[str, Any]]) -> dict[str, list[DecisionRecord]]:
    """Decisions by stage.

    A later line replaces all earlier ones for its step and later steps.
    """
    by_stage: dict[str, list[DecisionRecord]] = {}
    for line in understood(records):
        lines = by_stage.setdefault(line.stage, [])
        while lines and lines[-1].step >= line.step:
            lines.pop()
        lines.append(line)
    return by_stage


def understood(records: Iterable[Mapping[str, Any]]) -> Iterator[DecisionRecord]:
    """The decisions in the lines of a file; malformed lines are skipped."""
    for record in records:
        with suppress(ValidationError, IllegalParallelism):
            yield DecisionRecord.model_validate(record)


def changes(lines: Sequence[DecisionRecord]) -> list[DecisionRecord]:
    """The decisions of one stage that chose another parallelism than the decision before."""
    return [line for line in lines if line.verdict.switched]
