"""A table of text that leaves columns out where the screen is narrow. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table
from rich.text import Text

# Characters between two columns, and those that a sentence needs at least.
GAP = 3
MOST_PROSE = 24


@dataclass(frozen=True, slots=True)
class StatusTable:
    """One table.

    keys: identifiers of its rows, for code that selects one. numbers: columns that are right-aligned. prose:
    columns of sentences, which may take several lines. least: columns in the order in which a narrow screen
    leaves them out.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: tuple[str, ...] = ()
    numbers: frozenset[str] = frozenset()
    prose: frozenset[str] = frozenset()
    least: tuple[str, ...] = ()

    def fitted(self, cells: int) -> StatusTable:
        """The table for a screen of so many characters: without some columns, or its only row as lines."""
        dropped: set[str] = set()
        for column in (None, *self.least):
            dropped |= {column} if column is not None else set()
            widths = [
                MOST_PROSE if name in self.prose else max(len(name), *(len(row[i]) for row in self.rows))
                for i, name in enumerate(self.columns)
                if name not in dropped
            ]
            if sum(widths) + GAP * len(widths) <= cells:
                break
        else:
            if len(self.rows) == 1 and not self.prose:
                pairs = tuple(zip(self.columns, self.rows[0], strict=True))
                return StatusTable(self.title, ("", " "), pairs, numbers=numbers(" "))
        return self.without(dropped)

    def without(self, columns: Collection[str]) -> StatusTable:
        """The table without these columns."""
        kept = [i for i, name in enumerate(self.columns) if name not in columns]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=rows)

    def drawn(self, emphasised: str = "", **options: Any) -> Table:
        """The table as rich draws it. emphasised: a column. options: of rich's Table."""
        table = Table(**options)
        for name in self.columns:
            justify = "right" if name in self.numbers else "left"
            style = "bold green" if name == emphasised else ""
            table.add_column(name, justify=justify, style=style, no_wrap=name not in self.prose)
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def numbers(*columns: str) -> frozenset[str]:
    return frozenset(columns)
