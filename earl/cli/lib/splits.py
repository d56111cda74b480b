"""Decisions about the division of a pool of devices, as splits.jsonl recorded them, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from earl.errors import ConfigError
from earl.obs.metrics import read_lines

FILE = "splits.jsonl"
# Decisions that are listed where nobody named a step.
LISTED = 20


def read_splits(directory: Path) -> list[Mapping[str, Any]]:
    """The decisions of a run, oldest first; none in a run whose stages keep their devices. Lines that hold no
    decision are left out."""
    return [
        line for line in read_lines(directory / FILE) if {"step", "sentence", "candidates"} <= line.keys()
    ]


def splits_at(lines: Sequence[Mapping[str, Any]], step: int | None) -> list[Mapping[str, Any]]:
    """The decisions for a step, the last one for None. Raises ConfigError naming the steps that there are."""
    if not lines or step is None:
        return list(lines[-1:])
    chosen = [line for line in lines if line["step"] == step]
    if not chosen:
        raise ConfigError(
            f"there is no decision about the division of devices for step {step}",
            f"there are some for steps {lines[0]['step']} to {lines[-1]['step']}",
        )
    return chosen[-1:]


def split_lines(line: Mapping[str, Any]) -> Iterator[str]:
    """One decision as an engineer reads it: what was measured, every division, the verdict."""
    yield f"devices, decided for step {line['step']}: {line['sentence']}"
    stages = list(line["here"])
    yield f"  the last batch took {_seconds_text(line, stages, '{}_device_s')}"
    # Runs of before knew no expectation.
    if "expected_rollout_device_s" in line:
        yield f"  expected once devices have moved: {_seconds_text(line, stages, 'expected_{}_device_s')}"
    for candidate in line["candidates"]:
        devices = {stage: candidate[stage] for stage in stages}
        marks = [name for name in ("here", "best") if line[name] == devices]
        note = f"  ({', '.join(marks)})" if marks else ""
        counts = ", ".join(f"{stage} {count:>3}" for stage, count in devices.items())
        layouts = _layouts_text(candidate.get("layouts", {}))
        yield f"  {counts}: {candidate['step_s']:.2f} s a step{layouts}{note}"
    if line["held"]:
        yield f"  not carried out: {line['held']}"
    elif line["move"]:
        yield f"  carried out by move {line['move']}"


def _layouts_text(layouts: Mapping[str, str]) -> str:
    """The layouts that a division assumes in words; "" where no profile knows them."""
    return " with " + ", ".join(f"{stage} {layout}" for stage, layout in layouts.items()) if layouts else ""


def _seconds_text(line: Mapping[str, Any], stages: Sequence[str], key: str) -> str:
    """The device-seconds of each stage in words. key: of a stage's, with {} for its name."""
    seconds = [f"{line[key.format(stage)]:.2f} device-seconds of {stage}" for stage in stages]
    return ", ".join(seconds)


def moves_listed(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The last decisions that moved devices, a line each."""
    for line in [line for line in lines if line["move"]][-LISTED:]:
        yield f"step {line['step']}: {line['sentence']}"
