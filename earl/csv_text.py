"""CSV texts: their lines by the names of the columns, the numbers in them, and how they are written. Pure.

Columns are in any order, and further ones are ignored; blank lines are skipped.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence

from earl.errors import ConfigError

# Whatever is measured lies within these; beyond them products and ratios would leave floating point.
LEAST, MOST = 1e-30, 1e30

Cells = dict[str, str]


def records(
    text: str, name: str, columns: Sequence[str], *, optional: Sequence[str] = (), most: int
) -> Iterator[tuple[str, Cells]]:
    """(where, cells) of each line: cells without spaces around, "" where there is none.

    name: of the file; where: that and the line, for errors. most: lines, a bound. Raises ConfigError.
    """
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")), skipinitialspace=True)
    try:
        reader.fieldnames = given = [column.strip() for column in reader.fieldnames or ()]
        missing = [column for column in columns if column not in (*given, *optional)]
        if missing:
            raise ConfigError(
                f"{name} has no column {missing[0]!r}", f"its first line is {','.join(columns)}"
            )
        line_count = 0
        for record in reader:
            where = f"{name}, line {reader.line_num}"
            beyond = record.pop(None, None) or ()
            cells = {column: (record.get(column) or "").strip() for column in columns}
            if not any(cells.values()):
                continue
            if any(cell.strip() for cell in beyond):
                raise ConfigError(
                    f"{where}: it has {len(given) + len(beyond)} cells, and the head {len(given)}",
                    "write numbers without thousands separators",
                )
            line_count += 1
            if line_count > most:
                raise ConfigError(f"{name} has more than {most} lines", "leave some out")
            yield where, cells
    except csv.Error as error:
        raise ConfigError(f"{name}, line {reader.line_num}: {error}", "close its quotes") from None


def text_of(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """The text of a head and lines."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return out.getvalue()


def positive(text: str, name: str, where: str) -> float:
    """A number above 0. Raises ConfigError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not LEAST <= value <= MOST:
        raise ConfigError(f"{where}: {name} is {text!r}", f"give a number above 0, from {LEAST} to {MOST}")
    return value
