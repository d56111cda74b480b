"""Rows of a profile, and their CSV form. Pure.

    stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s,peak_memory_fraction

concurrency: sequences in the whole pool. tokens_per_device_s: "oom" where it does not fit; empty where
only the memory is known. peak_memory_fraction: of a device's memory; may be empty; above 1 it does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from earl.csv_text import Cells, positive, records, text_of
from earl.errors import ConfigError
from earl.pacing.cells import stage_and_layout
from earl.parallelism import Parallelism

COLUMNS = (
    "stage", "dp", "tp", "cp", "pp", "context_tokens", "concurrency", "tokens_per_device_s",
    "peak_memory_fraction",
)  # fmt: skip
OOM = "oom"
_OPTIONAL = ("dp", "cp", "pp", "peak_memory_fraction")
# A profile has some hundreds of rows; what is larger is not one.
MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class ProfileRow:
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

    @property
    def figures(self) -> str:
        """The measured figures in words."""
        known = [OOM] if self.oom else []
        if self.tokens_per_device_s is not None:
            known.append(f"{self.tokens_per_device_s:g} tokens/s on each device")
        if self.peak_memory_fraction is not None:
            known.append(f"{self.peak_memory_fraction:.1%} of memory")
        return ", ".join(known)

    def contradicts(self, other: ProfileRow) -> bool:
        """Returns whether two rows of one point differ in a figure that both have."""
        pairs = (
            (self.tokens_per_device_s, other.tokens_per_device_s),
            (self.peak_memory_fraction, other.peak_memory_fraction),
        )
        ran = self.tokens_per_device_s is not None, other.tokens_per_device_s is not None
        return (
            (self.oom and ran[1])
            or (other.oom and ran[0])
            or any(mine is not None and its is not None and mine != its for mine, its in pairs)
        )

    def as_dict(self) -> dict[str, object]:
        """The row by columns, numbers unchanged; None where the CSV form is empty."""
        rate = OOM if self.oom else self.tokens_per_device_s
        measured = (self.context_tokens, self.concurrency, rate, self.peak_memory_fraction)
        return dict(zip(COLUMNS, (self.stage, *self.parallelism.as_dict().values(), *measured), strict=True))


def parse(text: str, name: str) -> list[ProfileRow]:
    """Rows of a CSV text, whatever the order of its columns; dp, cp and pp may be left out, and are 1.

    name: of the file, for errors. Raises ConfigError naming the line, or the two lines that contradict each
    other: a point may have several rows only if they agree.
    """
    rows: list[ProfileRow] = []
    at_point: dict[tuple[object, ...], list[tuple[str, ProfileRow]]] = {}
    for where, cells in records(text, name, COLUMNS, optional=_OPTIONAL, most=MOST_ROWS):
        row = _row(cells, where)
        earlier = at_point.setdefault((row.stage, row.parallelism, row.context_tokens, row.concurrency), [])
        for earlier_where, other in earlier:
            if other.contradicts(row):
                raise ConfigError(
                    f"{earlier_where} and {where} contradict each other: {row.stage} {row.parallelism} at "
                    f"{row.context_tokens:g} tokens x {row.concurrency:g} sequences has {other.figures} "
                    f"and {row.figures}",
                    "keep the one that holds",
                )
        earlier.append((where, row))
        rows.append(row)
    if not rows:
        raise ConfigError(f"{name} has no rows", "measure some: earl profile")
    return rows


def dump(rows: Iterable[ProfileRow]) -> str:
    """The CSV text of rows, with its head."""
    return text_of(COLUMNS, map(_cells, rows))


def _cells(row: ProfileRow) -> list[object]:
    """Measured figures precisely: what is a little above 1 must not come back as 1, which fits."""
    cells = row.as_dict()
    digits = {"context_tokens": 10, "concurrency": 10, "tokens_per_device_s": 6, "peak_memory_fraction": 9}
    for name, count in digits.items():
        if not isinstance(cells[name], str | None):
            cells[name] = f"{cells[name]:.{count}g}"
    return list(cells.values())


def _row(cells: Cells, where: str) -> ProfileRow:
    stage, parallelism = stage_and_layout(cells, where)
    rate_text, fraction_text = cells["tokens_per_device_s"], cells["peak_memory_fraction"]
    oom = rate_text.lower() == OOM
    rate = None if oom or not rate_text else positive(rate_text, "tokens_per_device_s", where)
    fraction = positive(fraction_text, "peak_memory_fraction", where) if fraction_text else None
    if not oom and rate is None and fraction is None:
        raise ConfigError(
            f"{where}: neither tokens_per_device_s nor peak_memory_fraction", "give one, or leave the row out"
        )
    return ProfileRow(
        stage,
        parallelism,
        positive(cells["context_tokens"], "context_tokens", where),
        positive(cells["concurrency"], "concurrency", where),
        rate,
        fraction,
        oom,
    )
