"""Traces: what each step of a run brought, and their CSV form. Pure.

step,mean_tokens,p95_tokens,max_tokens,concurrency,devices
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from earl.errors import ConfigError
from services.scheduler.selector.decision import Workload

COLUMNS = ("step", "mean_tokens", "p95_tokens", "max_tokens", "concurrency", "devices")
MOST_STEPS = 1_000_000


@dataclass(frozen=True, slots=True)
class Step:
    """One row: the step's number, what it brought, and the pool that it ran on."""

    step: int
    workload: Workload
    devices: int


def parse(text: str, name: str) -> list[Step]:
    """Steps of a CSV text, whatever the order of its columns.

    name: of the file, for errors. Raises ConfigError naming the line.
    """
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")), skipinitialspace=True)
    reader.fieldnames = [column.strip() for column in reader.fieldnames or ()]
    missing = [column for column in COLUMNS if column not in reader.fieldnames]
    if missing:
        raise ConfigError(f"{name} has no column {missing[0]!r}", f"its first line is {','.join(COLUMNS)}")
    steps: list[Step] = []
    for record in reader:
        if not any((record[column] or "").strip() for column in COLUMNS):
            continue
        if len(steps) == MOST_STEPS:
            raise ConfigError(f"{name} has more than {MOST_STEPS} steps", "leave steps out")
        steps.append(_step(record, f"{name}, line {reader.line_num}"))
        if len(steps) > 1 and steps[-1].step <= steps[-2].step:
            raise ConfigError(
                f"{name}, line {reader.line_num}: step {steps[-1].step} comes after step {steps[-2].step}",
                "order the rows by step, each once",
            )
    if not steps:
        raise ConfigError(f"{name} has no steps", "give at least one row")
    return steps


def dump(steps: Iterable[Step]) -> str:
    """The CSV text of steps, with its head."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in steps:
        load = one.workload
        numbers = (load.mean_tokens, load.p95_tokens, load.max_tokens, load.concurrency)
        writer.writerow((one.step, *(f"{number:.10g}" for number in numbers), one.devices))
    return out.getvalue()


def _step(record: Mapping[str, str | None], where: str) -> Step:
    values: dict[str, float] = {}
    for name in COLUMNS:
        text = (record[name] or "").strip()
        try:
            values[name] = float(text)
        except ValueError:
            values[name] = math.nan
        if not math.isfinite(values[name]) or values[name] < 0 or (name != "step" and values[name] == 0):
            raise ConfigError(f"{where}: {name} is {text!r}", "give a number above 0; steps begin at 0")
    for name in ("step", "devices"):
        if values[name] != int(values[name]):
            raise ConfigError(f"{where}: {name} is {values[name]:g}", "give a whole number")
    if values["mean_tokens"] > values["max_tokens"]:
        raise ConfigError(
            f"{where}: mean_tokens {values['mean_tokens']:g} is above max_tokens {values['max_tokens']:g}",
            "a mean is at most the maximum",
        )
    load = Workload(*(values[name] for name in COLUMNS[1:5]))
    return Step(int(values["step"]), load, int(values["devices"]))
