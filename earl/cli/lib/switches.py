"""Switches of parallelism in words: of a running run, and as switches.jsonl recorded them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from earl.errors import IllegalParallelism
from earl.json_fields import from_json
from earl.obs.metrics import plain, read_lines
from earl.parallelism import REFERENCE, TRAINER, Parallelism
from earl.stack.status import DeviceMoveState, StageState
from earl.switch_figures import StageSwitch, SwitchFigures

FILE = "switches.jsonl"
# What requested a switch, where its stored name is not what people are shown.
REQUESTED_BY = {"mend": "realignment"}
# Stages whose ranks stand still while their number changes, in words.
RANKS = {TRAINER: "trainer", REFERENCE: "reference stage"}
# The parallelism of a stage whose workers have different ones.
UNEVEN = "mixed parallelism"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSwitch(StageSwitch[Parallelism]):
    """A line of switches.jsonl.

    by: "selector", "operator", "plan" or "mend", for workers that had another parallelism than their stage,
    which people are shown as in REQUESTED_BY. step: that the selector decided for, 0 if it did not.
    end_ns: Unix nanoseconds.
    """

    before: Parallelism
    after: Parallelism
    stage: str
    by: str
    step: int = 0
    end_ns: int = 0

    def as_json(self) -> dict[str, Any]:
        """The fields for strict JSON: a number that is not finite becomes null."""
        return plain(asdict(self))


def read_switches(directory: Path) -> list[RecordedSwitch]:
    """The switches of a run, in the order in which they ended; other lines are left out."""
    return [switch for line in read_lines(directory / FILE) if (switch := record_of(line)) is not None]


def record_of(line: Mapping[str, Any]) -> RecordedSwitch | None:
    """The switch of a line; None if the line holds none. A figure of null, which JSON has for NaN, is NaN."""
    figures = {name: math.nan for name in SwitchFigures().figures() if line.get(name, 0) is None}
    try:
        return from_json(RecordedSwitch, {**line, **figures})
    except (ValueError, IllegalParallelism):
        return None


def parallelism_text(stage: StageState) -> str:
    """A stage's parallelism as text, for example "rollout dp2 (pinned)"."""
    return f"{stage.name} {stage.running or UNEVEN}{' (pinned)' if stage.pinned else ''}"


def switch_text(switch: StageSwitch[Any], *, runs: bool = False) -> str:
    """A switch as a predicate, for example "switched from dp2 to tp2 in 4.20 s, stalled 0.31 s (epoch 3)"."""
    change = f"from {switch.before} to {switch.after}"
    if runs:
        return f"is switching {change} (epoch {switch.epoch}): {switch.reason}"
    if switch.rolled_back:
        back = f"stayed {switch.before}, rolled back from {switch.after}"
        return f"{back} (epoch {switch.epoch}): {switch.message}"
    took = [
        f"switched {change} in {switch.seconds:.2f} s",
        f"stalled {switch.stall_s:.2f} s",
        *switch.words(),
    ]
    return f"{', '.join(took)} (epoch {switch.epoch})"


def move_text(move: DeviceMoveState) -> str:
    """A move of devices in words, for example "rollout 6 → 5, trainer 2 → 3 in 4.20 s, the trainer stood
    still for 1.31 s (move 3)". Layouts of more than replicas of one device: "trainer 2 → 4 as dp2·cp2"."""
    before, after = move.before, move.after
    changed = [stage for stage in before if before[stage] != after[stage]]
    change = ", ".join(f"{stage} {before[stage]} → {after[stage]}" for stage in changed)
    if not move.running and not move.rolled_back:
        change = ", ".join(
            f"{stage} {before[stage]} → {after[stage]}{_as_layout(move.layouts.get(stage, ''))}"
            for stage in changed
        )
    if move.running:
        return f"devices are moving: {change} ({move.phase}, move {move.number}): {move.reason}"
    if move.rolled_back:
        return f"devices stayed, rolled back from {change} (move {move.number}): {move.message}"
    ranks = " and ".join(f"the {name}" for stage, name in RANKS.items() if stage in changed)
    stall = f", {ranks} stood still for {move.stall_s:.2f} s" if move.stall_s else ""
    return f"{change} in {move.seconds:.2f} s{stall} (move {move.number})"


def _as_layout(layout: str) -> str:
    """A layout behind its number of devices: "" where it is replicas of one device, or not known."""
    return f" as {layout}" if layout and math.prod(Parallelism.parse(layout).replica) > 1 else ""


def devices_text(devices: Mapping[str, int]) -> str:
    """The devices of each stage of a pool in words, for example "rollout 6, trainer 2"."""
    return ", ".join(f"{stage} {count}" for stage, count in devices.items())
