"""Traces: what each step of a run brought, and their CSV form. Pure.

step,mean_tokens,p95_tokens,max_tokens,concurrency,devices
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from earl.csv_text import Cells, positive, records, text_of
from earl.errors import ConfigError
from services.scheduler.selector.decision import Workload

COLUMNS = ("step", "mean_tokens", "p95_tokens", "max_tokens", "concurrency", "devices")
MOST_STEPS = 1_000_000
# Most steps or devices: whole numbers up to here are exact.
MOST_NUMBER = 1 << 53


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One row: the step's number, what it brought, and the pool that it ran on."""

    step: int
    workload: Workload
    devices: int


def parse(text: str, name: str) -> list[TraceStep]:
    """Steps of a CSV text, whatever the order of its columns.

    name: of the file, for errors. Raises ConfigError naming the line.
    """
    steps: list[TraceStep] = []
    for where, cells in records(text, name, COLUMNS, most=MOST_STEPS):
        steps.append(_step(cells, where))
        if len(steps) > 1 and steps[-1].step <= steps[-2].step:
            raise ConfigError(
                f"{where}: step {steps[-1].step} comes after step {steps[-2].step}",
                "order the rows by step, each once",
            )
    if not steps:
        raise ConfigError(f"{name} has no steps", "give at least one row")
    return steps


def dump(steps: Iterable[TraceStep]) -> str:
    """The CSV text of steps, with its head."""
    return text_of(COLUMNS, map(_cells, steps))


def _cells(step: TraceStep) -> tuple[object, ...]:
    load = step.workload
    numbers = (load.mean_tokens, load.p95_tokens, load.max_tokens, load.concurrency)
    return step.step, *(f"{number:.10g}" for number in numbers), step.devices


def _step(cells: Cells, where: str) -> TraceStep:
    values = [positive(cells[name], name, where) for name in COLUMNS[1:5]]
    load = Workload(*values)
    if load.mean_tokens > load.max_tokens:
        raise ConfigError(
            f"{where}: mean_tokens {load.mean_tokens:g} is above max_tokens {load.max_tokens:g}",
            "a mean is at most the maximum",
        )
    return TraceStep(_whole(cells, "step", where, 0), load, _whole(cells, "devices", where, 1))


def _whole(cells: Cells, name: str, where: str, least: int) -> int:
    """A whole number, also as "4.0"."""
    text = cells[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= MOST_NUMBER or value != int(value):
        raise ConfigError(
            f"{where}: {name} is {text!r}", f"give a whole number from {least} to {MOST_NUMBER}"
        )
    return int(value)
