"""Switches of parallelism in words: of a run that goes on, and as switches.jsonl recorded them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from earl.errors import IllegalParallelism
from earl.obs.metrics import read_lines
from earl.parallelism import Parallelism
from earl.stack.status import StageState

FILE = "switches.jsonl"


class Ended(Protocol):
    """What is told of a switch."""

    @property
    def epoch(self) -> int: ...
    @property
    def before(self) -> Any: ...
    @property
    def after(self) -> Any: ...
    @property
    def reason(self) -> str: ...
    @property
    def rolled_back(self) -> bool: ...
    @property
    def message(self) -> str: ...
    @property
    def stall_s(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def sequences_continued(self) -> int: ...
    @property
    def moved_bytes(self) -> int: ...


class Record(BaseModel):
    """A line of switches.jsonl. by: "selector", "operator" or "mend", for workers that were not cut as their
    stage. step: that it was decided for, 0 if nobody decided. end_ns: Unix nanoseconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    stage: str
    epoch: int
    by: str
    step: int = 0
    before: Parallelism
    after: Parallelism
    reason: str = ""
    rolled_back: bool = False
    message: str = ""
    stall_s: float = 0.0
    seconds: float = 0.0
    sequences_continued: int = 0
    moved_bytes: int = 0
    # None for a number that is none.
    max_logprob_difference: float | None = None
    end_ns: int = 0


def read_switches(directory: Path) -> list[Record]:
    """Of a run, in the order in which they ended; what is no record is left out."""
    found = []
    for line in read_lines(directory / FILE):
        if (one := record_of(line)) is not None:
            found.append(one)
    return found


def record_of(line: Mapping[str, Any]) -> Record | None:
    try:
        return Record.model_validate(line)
    except (ValidationError, IllegalParallelism):
        return None


def cut_text(stage: StageState) -> str:
    """For example "rollout dp2 (pinned)"."""
    return f"{stage.name} {stage.running or 'cut unevenly'}{' (pinned)' if stage.pinned else ''}"


def switch_text(one: Ended, *, runs: bool = False) -> str:
    """A switch as a predicate, for example "went from dp2 to tp2 in 4.20 s, stalled 0.31 s (epoch 3)"."""
    if runs:
        return f"goes from {one.before} to {one.after} (epoch {one.epoch}): {one.reason}"
    if one.rolled_back:
        return f"stays {one.before}, not {one.after} (epoch {one.epoch}): {one.message}"
    return f"went from {one.before} to {one.after} in {one.seconds:.2f} s, {', '.join(costs(one))}"


def costs(one: Ended) -> list[str]:
    """What a switch that ended well cost."""
    found = [f"stalled {one.stall_s:.2f} s"]
    if one.sequences_continued:
        found.append(f"{one.sequences_continued} sequences went on")
    if one.moved_bytes:
        found.append(f"{one.moved_bytes / (1 << 20):,.1f} MiB moved")
    return [*found[:-1], f"{found[-1]} (epoch {one.epoch})"]
