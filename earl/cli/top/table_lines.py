"""A table of a snapshot as lines of text for a screen of so many characters. Pure.

    StatusTable ─► columns that fit ─► header and rows, cells aligned, sentences wrapped between words

A table of one row whose columns do not fit in one line becomes several headers, each with its part of it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from earl.cli.lib.status_table import GAP, StatusTable
from earl.visible import visible

# A column of a sentence is not made narrower than this, unless the screen is.
LEAST_PROSE = 12


@dataclass(frozen=True, slots=True)
class TableLine:
    """One line of a table. row: index of the row that it belongs to, None for a header."""

    text: str
    row: int | None = None


@dataclass(frozen=True, slots=True)
class TableLines:
    """widths: of the columns, in characters."""

    lines: tuple[TableLine, ...] = ()
    columns: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()


def table_lines(table: StatusTable, cells: int, before: TableLines | None = None) -> TableLines:
    """The table on a screen of `cells` characters; what is still wider at the end is cut by the screen.

    before: what the same table was shown as last. A column stays as wide as it was while the screen has
    room, so that a figure that loses a digit does not move those next to it.
    """
    if len(table.rows) == 1 and not table.prose:
        return _chunks(table, cells, before)
    table = table.fitted(cells) if table.rows else table
    natural = _natural(table)
    widths = _at_least_before(table.columns, natural, before)
    if _total(widths) > cells:
        widths = _narrowed(table, natural, cells)
    lines = [TableLine(_joined(table, table.columns, widths))]
    for index, row in enumerate(table.rows):
        lines += [TableLine(text, index) for text in _wrapped(table, row, widths)]
    return TableLines(tuple(lines), table.columns, tuple(widths))


def _chunks(table: StatusTable, cells: int, before: TableLines | None) -> TableLines:
    """The only row of a table, in as many lines as it needs."""
    widths = _at_least_before(table.columns, _natural(table), before)
    parts: list[list[int]] = [[]]
    for i, width in enumerate(widths):
        if parts[-1] and _total([*(widths[j] for j in parts[-1]), width]) > cells:
            parts.append([])
        parts[-1].append(i)
    lines: list[TableLine] = []
    for part in parts:
        columns = tuple(table.columns[i] for i in part)
        chunk = StatusTable(
            table.title, columns, (tuple(table.rows[0][i] for i in part),), numbers=table.numbers
        )
        wide = [widths[i] for i in part]
        lines += [TableLine(_joined(chunk, columns, wide)), TableLine(_joined(chunk, chunk.rows[0], wide), 0)]
    return TableLines(tuple(lines), table.columns, tuple(widths))


def _natural(table: StatusTable) -> list[int]:
    return [max([len(name), *(len(row[i]) for row in table.rows)]) for i, name in enumerate(table.columns)]


def _at_least_before(columns: Sequence[str], widths: list[int], before: TableLines | None) -> list[int]:
    if before is None or before.columns != tuple(columns):
        return widths
    return list(map(max, widths, before.widths))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _narrowed(table: StatusTable, widths: list[int], cells: int) -> list[int]:
    """The widths with the widest sentences narrower, until all fit or none can be narrower."""
    widths = list(widths)
    prose = [i for i, name in enumerate(table.columns) if name in table.prose]
    while _total(widths) > cells:
        widest = max(prose, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= LEAST_PROSE:
            break
        widths[widest] -= 1
    return widths


def _wrapped(table: StatusTable, row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """The lines of a row: more than one where a sentence is longer than its column."""
    wrapped = [
        textwrap.wrap(cell, width) if name in table.prose else [cell]
        for name, cell, width in zip(table.columns, row, widths, strict=True)
    ]
    for i in range(max(map(len, wrapped))):
        yield _joined(table, [lines[i] if i < len(lines) else "" for lines in wrapped], widths)


def _joined(table: StatusTable, cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        f"{cell:>{width}}" if name in table.numbers else f"{cell:<{width}}"
        for name, cell, width in zip(table.columns, cells, widths, strict=True)
    ]
    return visible((" " * GAP).join(aligned).rstrip())
