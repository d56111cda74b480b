"""Rows of a profile, and their CSV form. Pure.

    stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s,peak_memory_fraction

concurrency: sequences in the whole pool. tokens_per_device_s: "oom" where it does not fit; empty where
only the memory is known. peak_memory_fraction: of a device's memory; may be empty; above 1 it does not fit.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from earl.errors import ConfigError, IllegalParallelism
from earl.parallelism import Parallelism

STAGES = ("rollout", "reference", "trainer")
COLUMNS = (
    "stage", "dp", "tp", "cp", "pp", "context_tokens", "concurrency", "tokens_per_device_s",
    "peak_memory_fraction",
)  # fmt: skip
OOM = "oom"
_OPTIONAL = ("dp", "cp", "pp", "peak_memory_fraction")
# A profile has some hundreds of rows; what is larger is not one.
MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Row:
    """One measured point.

    tokens_per_device_s: > 0, or None where it was not measured. oom: it was tried and did not fit.
    """

    stage: str
    parallelism: Parallelism
    context_tokens: float
    concurrency: float
    tokens_per_device_s: float | None
    peak_memory_fraction: float | None = None
    oom: bool = False

    @property
    def fits(self) -> bool:
        return not self.oom and (self.peak_memory_fraction is None or self.peak_memory_fraction <= 1.0)


def parse(text: str, name: str) -> list[Row]:
    """Rows of a CSV text, whatever the order of its columns; dp, cp and pp may be left out, and are 1.

    name: of the file, for errors. Raises ConfigError naming the line.
    """
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")), skipinitialspace=True)
    given = [column.strip() for column in reader.fieldnames or ()]
    reader.fieldnames = given
    missing = [
        column for column in COLUMNS if column not in (*given, "dp", "cp", "pp", "peak_memory_fraction")
    ]
    if missing:
        raise ConfigError(f"{name} has no column {missing[0]!r}", f"its first line is {','.join(COLUMNS)}")
    rows = []
    for record in reader:
        if len(rows) == MOST_ROWS:
            raise ConfigError(f"{name} has more than {MOST_ROWS} rows", "leave rows out")
        if any((value or "").strip() for value in record.values() if not isinstance(value, list)):
            rows.append(_row(record, f"{name}, line {reader.line_num}"))
    if not rows:
        raise ConfigError(f"{name} has no rows", "measure some: earl profile")
    return rows


def dump(rows: Iterable[Row]) -> str:
    """The CSV text of rows, with its head."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        rate = OOM if row.oom else "" if row.tokens_per_device_s is None else f"{row.tokens_per_device_s:.6g}"
        fraction = "" if row.peak_memory_fraction is None else f"{row.peak_memory_fraction:.4g}"
        cut = row.parallelism
        writer.writerow(
            (row.stage, cut.dp, cut.tp, cut.cp, cut.pp, f"{row.context_tokens:.10g}",
             f"{row.concurrency:.10g}", rate, fraction)
        )  # fmt: skip
    return out.getvalue()


def _row(record: Mapping[str, str | None], where: str) -> Row:
    cells = {name: (value or "").strip() for name, value in record.items() if isinstance(name, str)}
    stage = cells["stage"].lower()
    if stage not in STAGES:
        raise ConfigError(f"{where}: stage is {cells['stage']!r}", f"it is one of {', '.join(STAGES)}")
    degrees = [_number(cells.get(name, "") or "1", name, where) for name in ("dp", "tp", "cp", "pp")]
    if any(degree != int(degree) or degree > 1 << 20 for degree in degrees):
        raise ConfigError(f"{where}: degrees {degrees} are not whole numbers", "give dp, tp, cp, pp >= 1")
    try:
        parallelism = Parallelism(*map(int, degrees))
    except IllegalParallelism as error:
        raise ConfigError(f"{where}: {error.message}", error.remedy) from None
    rate_text, fraction_text = cells["tokens_per_device_s"], cells.get("peak_memory_fraction", "")
    oom = rate_text.lower() == OOM
    rate = None if oom or not rate_text else _number(rate_text, "tokens_per_device_s", where)
    fraction = _number(fraction_text, "peak_memory_fraction", where) if fraction_text else None
    if not oom and rate is None and fraction is None:
        raise ConfigError(
            f"{where}: neither tokens_per_device_s nor peak_memory_fraction", "give one, or leave the row out"
        )
    return Row(
        stage,
        parallelism,
        _number(cells["context_tokens"], "context_tokens", where),
        _number(cells["concurrency"], "concurrency", where),
        rate,
        fraction,
        oom,
    )


def _number(text: str, name: str, where: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{where}: {name} is {text!r}", "give a number above 0")
    return value
